package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/oplogrep/replicator/applier"
	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/cutover"
	"github.com/oplogrep/replicator/cutover/record"
	"github.com/oplogrep/replicator/internal/cli"
	"github.com/oplogrep/replicator/internal/mongo/driver"
	"github.com/oplogrep/replicator/internal/printable"
	"github.com/oplogrep/replicator/pipeline/failure"
	"github.com/oplogrep/replicator/scope"
)

// wayBack sets the filters of a link that is the way back of another, unless flags set them: those that it
// has recorded or, if it is new, those of the link that was cut over. It returns a new way back, nil for every
// other link.
func (c *runCommand) wayBack(ctx context.Context, p *plan, source, target *driver.Set) (*cutover.Back, error) {
	store, err := checkpoint.New(checkpoint.Config{Target: target, DB: c.MetadataDB, Link: c.Link})
	if err != nil {
		return nil, err
	}
	st, found, err := loaded(ctx, store)
	switch {
	case err != nil && !c.StartAt.back && !failure.Transient(err):
		return nil, nil //nolint:nilnil // The startup checks report the error.
	case err != nil:
		return nil, err
	case found && st.Over == nil && st.Back != nil && st.Filters != nil:
		return nil, c.takeFilters(p, *st.Filters)
	case found && st.Over == nil, !c.StartAt.back:
		return nil, nil //nolint:nilnil // It is none, or begins otherwise.
	}
	back, err := cutover.FindBack(ctx, &cutover.BackConfig{Source: source, Target: target, MetaDB: c.MetadataDB, Of: c.StartAt.of})
	if err != nil {
		return nil, err
	}
	if found && back.Used(&st) {
		return nil, nil //nolint:nilnil // It has ended, as the startup checks say.
	}
	p.back = back.String()
	return back, c.takeFilters(p, back.Filters())
}

// takeFilters makes filters those of the link, unless flags give some.
func (c *runCommand) takeFilters(p *plan, f checkpoint.Filters) error {
	if len(c.Include)+len(c.Exclude)+len(c.Map) > 0 || c.UsersAndRoles {
		if given := *p.pipeline.Filters; !given.Equal(f) {
			return cli.Usage(fmt.Errorf("link %s is a way back: what it mirrors follows from the link that was cut over; leave --include, --exclude, --map and --users-and-roles out", c.Link))
		}
	}
	names, err := scope.New(cutover.ScopeOf(&f, c.MetadataDB))
	if err != nil {
		return err
	}
	p.scope, p.pipeline.Scope, p.pipeline.Filters = names, names, &f
	return nil
}

// beginBack creates the link where another was cut over.
func (c *runCommand) beginBack(ctx context.Context, p *plan, back *cutover.Back) error {
	return back.Begin(ctx, c.Link, checkpoint.State{
		Writers: p.pipeline.Writers, Routing: applier.Routing, Fingerprint: p.pipeline.Fingerprint(),
	}, p.scope)
}

// notBack says what to do if a way back cannot begin.
func notBack(err error) error {
	if is[*cli.Error](err) {
		return err
	}
	text := errors.New(printable.Text(err.Error()))
	switch {
	case errors.Is(err, cutover.ErrNoWayBack):
		return &cli.Error{Err: text, Code: cli.ExitCheck, Hint: "replicator links --target URI, of this link's source, shows the links that were cut over. A link with a copy needs no way back: --start-at=copy. Nothing was written."}
	case errors.Is(err, cutover.ErrTouched):
		return &cli.Error{Err: text, Code: cli.ExitCheck, Hint: "No link mirrors these writes. Save them elsewhere if they are needed, then create the link with a copy: --start-at=copy --drop-existing."}
	}
	return linkError{err}
}

// defaultMetaDB is the metadata database unless --metadata-db says another one.
const defaultMetaDB = "replicator"

// backOf says how the way back of a link that was cut over begins, with all that is known of the command; was is
// the link that this one was the way back of, nil for none. Passwords are not in it.
func (c *cutoverCommand) backOf(armed bool, was *checkpoint.Back) string {
	if !armed {
		return "There is no way back without a copy"
	}
	name := c.Link + "-back"
	switch {
	case was != nil:
		name = was.Link // a name that was used before begins again
	case !checkpoint.ValidLink(name):
		name = "NAME"
	}
	words := []string{"replicator", "run"}
	// The sides are exchanged.
	words = append(words, c.TargetLogin.words("source", c.Target)...)
	words = append(words, c.SourceLogin.words("target", c.Source)...)
	words = append(words, "--link", name, "--start-at=cutover:"+c.Link)
	if c.MetadataDB != defaultMetaDB {
		words = append(words, "--metadata-db", c.MetadataDB)
	}
	for i, word := range words {
		words[i] = printable.Text(printable.ShellWord(word))
	}
	return "The way back, without a copy: " + strings.Join(words, " ")
}

// whileBlocked says, as a line, what a way back needs while the write block of the old source, its target, is on; it is empty if a cutover left
// none, or armed none.
func whileBlocked(r *record.Record, armed bool) string {
	if !armed || r == nil || r.Options.Freeze != record.Block || r.Options.ThawSource {
		return ""
	}
	return "While the old source is blocked the way back needs a user there who may bypass that, as the role restore allows. Without access control lift the block first, " +
		"once no application can write there: db.adminCommand({setUserWriteBlockMode: 1, global: false}) on its primary. Start the way back at once then: it does not begin after its TTL indexes have deleted anything there.\n"
}

// words are the flags that say where a side is, and how to log in: its name becomes side.
func (l *loginFlags) words(side, uri string) []string {
	words := []string{"--" + side, "…"}
	if o, err := driver.Parse(l.config(uri, time.Second)); err == nil {
		words[1] = o.Place()
	}
	add := func(name, value string) {
		if value != "" {
			words = append(words, "--"+side+"-"+name, value)
		}
	}
	add("username", l.Username)
	add("password-file", l.PasswordFile)
	add("auth-source", l.AuthSource)
	add("tls-ca-file", l.TLSCAFile)
	add("tls-certificate-key-file", l.TLSCertificateKeyFile)
	for _, h := range l.HostMap {
		add("host-map", h.name+"="+h.address)
	}
	return words
}
