package main

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/applier/ddl"
	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/guard"
	"github.com/oplogrep/replicator/internal/cli"
	"github.com/oplogrep/replicator/internal/mongo/driver"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/pipeline"
	"github.com/oplogrep/replicator/scope"
	"github.com/oplogrep/replicator/standby"
	"github.com/oplogrep/replicator/syncsource"
	"github.com/oplogrep/replicator/verify/continuous"
)

// loginFlags say how to connect and log in to a deployment. They take precedence
// over the connection string.
type loginFlags struct {
	Username              string `placeholder:"NAME" help:"User name."`
	PasswordFile          string `placeholder:"FILE" help:"File with the password."`
	AuthSource            string `placeholder:"DB" help:"Database of the user."`
	TLS                   bool   `name:"tls" help:"Use TLS."`
	TLSCAFile             string `name:"tls-ca-file" placeholder:"FILE" help:"Certificate authorities to trust, as PEM."`
	TLSCertificateKeyFile string `name:"tls-certificate-key-file" placeholder:"FILE" help:"Client certificate and its key, as PEM."`
	//nolint:lll // A tag cannot be broken.
	HostMap []hostAddress `sep:"none" placeholder:"NAME=ADDRESS" help:"Connect to ADDRESS instead of a member's NAME, if the names in the set's configuration do not resolve here or lead elsewhere. Each with or without a port."`
}

// sourceFlags say where the source is.
type sourceFlags struct {
	Source           string        `placeholder:"URI" help:"The source: connection string of a replica set."`
	SourceLogin      loginFlags    `embed:"" prefix:"source-"`
	SelectionTimeout time.Duration `default:"30s" help:"How long to wait for a suitable server."`
}

// config returns the driver's configuration of one side.
func (l *loginFlags) config(uri string, wait time.Duration) driver.Config {
	hosts := map[string]string{}
	for _, h := range l.HostMap {
		hosts[h.name] = h.address
	}
	return driver.Config{
		HostMap: hosts,
		URI:     uri, Username: l.Username, PasswordFile: l.PasswordFile, AuthSource: l.AuthSource,
		TLS: l.TLS, CAFile: l.TLSCAFile, CertificateKeyFile: l.TLSCertificateKeyFile, SelectionTimeout: wait,
	}
}

// parse checks where the source is, and how to log in.
func (s *sourceFlags) parse() (*driver.Options, error) {
	return parseDeployment("source", s.SourceLogin.config(s.Source, s.SelectionTimeout))
}

func parseDeployment(side string, cfg driver.Config) (*driver.Options, error) {
	if cfg.URI == "" {
		return nil, fmt.Errorf("--%s is missing: the connection string of a replica set, or its environment variable %s", side, envName(side))
	}
	o, err := driver.Parse(cfg)
	if err != nil {
		return nil, fmt.Errorf("--%s: %w", side, err)
	}
	return o, nil
}

// runFlags are the settings of a link.
type runFlags struct {
	sourceFlags `group:"Where"`
	Target      string     `group:"Where" placeholder:"URI" help:"The target: connection string of a replica set."`
	TargetLogin loginFlags `group:"Where" embed:"" prefix:"target-"`
	Link        string     `group:"Where" placeholder:"NAME" help:"Name of the link. The target stores its position under this name."`
	MetadataDB  string     `group:"Where" name:"metadata-db" default:"replicator" help:"Database of the target for the link's metadata."`

	Include       []string `group:"What" sep:"none" placeholder:"PATTERN" help:"Mirror these namespaces: shop, shop.orders, shop.log*, /regexp/. Default: everything."`
	Exclude       []string `group:"What" sep:"none" placeholder:"PATTERN" help:"Do not mirror these."`
	Map           []string `group:"What" sep:"none" placeholder:"A=B" help:"Rename on the target: shop=store, shop.a=store.b."`
	UsersAndRoles bool     `group:"What" help:"Mirror users and roles too."`

	//nolint:lll // A tag cannot be broken.
	StartAt       start  `group:"Start" placeholder:"T" help:"Where a new link starts. copy: first copy the source's data. Otherwise nothing is copied: cutover[:LINK] (the way back of a link that was cut over), now, unix seconds, SECONDS,INCREMENT or RFC 3339. Default: copy; with --allow-existing, now."`
	AllowExisting bool   `group:"Start" help:"The target has a copy of the source already."`
	CopiedUntil   moment `group:"Start" placeholder:"T" help:"The source was written to during that copy, which ended at T."`

	copyFlags `group:"Copy"`

	Transactions  string   `group:"Writing" default:"atomic" enum:"atomic,relaxed" help:"Apply the source's transactions as a whole (atomic), or as ordinary writes (relaxed)."`
	OnDivergence  string   `group:"Writing" default:"stop" enum:"stop,report" help:"If the target differs from what the link wrote: stop, or report it and continue."`
	UniqueIndexes string   `group:"Writing" default:"relaxed" enum:"relaxed,serialized" help:"Build unique indexes without uniqueness until cutover (relaxed), or write their collections in order (serialized)."`
	Writers       int      `group:"Writing" default:"16" help:"Number of writers."`
	BatchOps      int      `group:"Writing" default:"5000" help:"Operations in a batch."`
	BatchBytes    cli.Size `group:"Writing" default:"100MiB" help:"Bytes in a batch."`
	FlushDocs     int      `group:"Writing" default:"2000" help:"Documents that a writer changes in one transaction; from 2000 on twice as many where they are of many collections."`
	FlushBytes    cli.Size `group:"Writing" default:"8MiB" help:"Bytes that a writer sends in one transaction."`
	//nolint:lll // A tag cannot be broken.
	CoalesceWindow     int           `group:"Writing" default:"10000" help:"Operations in one transaction, if several change the same document."`
	Delay              time.Duration `group:"Writing" default:"0s" help:"Apply entries this long after the source did, on purpose."`
	CheckpointInterval time.Duration `group:"Writing" default:"100ms" help:"Minimum time between two checkpoints."`
	CutInterval        time.Duration `group:"Writing" default:"10s" help:"Minimum time between two consistent cuts. 0: only on request."`

	Guard string `group:"Writing" default:"alarm" enum:"alarm,stop,off" help:"Reaction to foreign writes, those of others to mirrored namespaces of the target: report them (alarm), end with exit code 7 (stop), do not look for them (off)."`

	Verify       string        `group:"Verifying" default:"off" enum:"off,continuous" help:"Compare source and target over and over while the link is steady (continuous)."`
	VerifyEvery  time.Duration `group:"Verifying" default:"1m" help:"Minimum time from the beginning of one comparison of everything to that of the next; a fourth of it if a collection is not verified."`
	VerifyBudget string        `group:"Verifying" default:"5%" help:"What that may take: a share of the time, as 5%, or bytes per second of each side, as 10MiB/s."`

	ReadPreference string        `group:"Reading" default:"auto" enum:"auto,primary,primaryPreferred,secondary,secondaryPreferred,nearest" help:"Which member to read from. auto: as the connection string says, otherwise the nearest."`
	ReadTags       []tags        `group:"Reading" sep:"none" placeholder:"K=V,…" help:"Read from members with these tags. Repeat the flag for fallbacks."`
	SyncSource     string        `group:"Reading" placeholder:"HOST:PORT" help:"Read from this member and no other."`
	MaxLag         time.Duration `group:"Reading" default:"30s" help:"How far a member that is read from may lag the primary."`
	Await          time.Duration `group:"Reading" default:"5s" help:"How long a member waits for new entries before it returns an empty reply."`

	Memory   cli.Size `group:"Limits" placeholder:"SIZE" help:"Memory of the process. Default: nine tenths of the container's limit, at most 1 GiB; without a container 320 MiB."`
	SpillDir string   `group:"Limits" placeholder:"DIR" help:"Directory for large open transactions. Default: the directory for temporary files."`

	Feedback       string `group:"Feedback" default:"auto" enum:"auto,member,document,none" help:"How to report the link's position to the source. auto: as a member, if there is one for this link (replicator member add)."`
	FeedbackMember int    `group:"Feedback" default:"-1" placeholder:"ID" help:"_id of the member to report as."`

	LeaseTTL   time.Duration `group:"Running" name:"lease-ttl" default:"10s" help:"How long the link's lease lasts unless the process that leads renews it."`
	LeaseRenew time.Duration `group:"Running" name:"lease-renew" default:"2s" help:"Time between two renewals: at most a fourth of --lease-ttl."`
	SpoolWait  time.Duration `group:"Running" default:"5m" help:"How long a process that stands by leaves the link to another one, if only the spool of that one has the oplog that is needed next."`
	Takeover   bool          `group:"Running" help:"Take the link over at once from the process that leads, which then stands by."`
	Once       bool          `group:"Running" help:"Do not stand by: end with exit code 5 while another process leads, or once one does."`

	httpFlags

	DrainTimeout time.Duration `group:"Running" default:"1m" help:"After a signal, how long to continue applying the entries read."`
	LogFormat    string        `group:"Running" default:"auto" enum:"auto,text,json" help:"auto: text on a terminal, JSON otherwise."`
	Progress     string        `group:"Running" default:"auto" enum:"auto,terminal,lines,json,none" help:"How to show the progress of a copy. auto: in place on a terminal, in lines otherwise."`
	LogLevel     string        `group:"Running" default:"info" enum:"debug,info,warn,error" help:"Minimum level to log."`

	// sourceless means that --source may be missing.
	sourceless bool
}

// plan is a checked set of runFlags.
type plan struct {
	source, target *driver.Options
	scope          *scope.Scope
	pipeline       pipeline.Config
	budget         continuous.Budget
	// back says which link this one is the way back of, empty if it is none.
	back string
}

// check turns the flags into a plan. The error has all faults.
func (f *runFlags) check() (*plan, error) {
	p := &plan{}
	var faults []error
	keep := func(err error) {
		if err != nil {
			faults = append(faults, err)
		}
	}
	var err error
	if p.source, err = f.parse(); f.Source != "" || !f.sourceless {
		keep(err)
	}
	p.target, err = parseDeployment("target", f.TargetLogin.config(f.Target, f.SelectionTimeout))
	keep(err)
	switch {
	case f.Link == "":
		keep(errors.New("--link is missing: a permanent name for the link"))
	case !checkpoint.ValidLink(f.Link):
		keep(fmt.Errorf("--link: %q: a name has letters, digits, dots, _ and -, 64 at most", f.Link))
	}
	keep(f.checkPatterns())
	p.scope, err = scope.New(scope.Config{
		Include: f.Include, Exclude: f.Exclude, Map: f.Map, UsersAndRoles: f.UsersAndRoles, MetaDB: f.MetadataDB,
	})
	keep(err)
	keep(f.checkNumbers())
	keep(f.checkStart())
	keep(f.checkCopy())
	keep(f.checkSpillDir())
	keep(f.checkHTTP())
	p.budget, err = f.budget()
	keep(err)
	if f.SyncSource != "" {
		keep(checkAddress("--sync-source", f.SyncSource))
	}
	if f.SyncSource != "" && p.source != nil && p.source.Direct() {
		keep(errors.New("--sync-source is given, and --source has directConnection=true, which names the one member to read: leave one of them out"))
	}
	if f.Feedback == "member" && f.FeedbackMember < 0 {
		keep(errors.New("--feedback=member needs --feedback-member; replicator member add creates one"))
	}
	if f.FeedbackMember >= 0 && (f.Feedback == "document" || f.Feedback == "none") {
		keep(fmt.Errorf("--feedback-member is given, and --feedback is %s", f.Feedback))
	}
	if err := errors.Join(faults...); err != nil {
		return nil, err
	}
	p.pipeline = f.pipeline(p)
	return p, nil
}

// checkPatterns refuses lists in one value: each element needs a flag of its
// own. A database name with a comma, which is rare, can be given by a regular
// expression.
func (f *runFlags) checkPatterns() error {
	var faults []error
	for _, list := range []struct {
		flag   string
		values []string
	}{{"include", f.Include}, {"exclude", f.Exclude}, {"map", f.Map}} {
		for _, text := range list.values {
			if err := onePattern(list.flag, text); err != nil {
				faults = append(faults, err)
			}
		}
	}
	return errors.Join(faults...)
}

// onePattern refuses a value that is meant as a list of patterns.
func onePattern(flag, text string) error {
	db, _, _ := strings.Cut(text, ".")
	if !strings.HasPrefix(text, "/") && strings.Contains(db, ",") {
		return fmt.Errorf("--%s: %q is a single pattern: repeat --%[1]s for each", flag, text)
	}
	return nil
}

// numberRange, sizeRange and timeRange are a flag's value and its limits.
type numberRange struct {
	flag        string
	n, from, to int64
}

type sizeRange struct {
	flag        string
	n, from, to cli.Size
}

type timeRange struct {
	flag    string
	d, from time.Duration
}

func (f *runFlags) checkNumbers() error {
	var faults []error
	for _, n := range append([]numberRange{
		{"writers", int64(f.Writers), 1, 256},
		{"batch-ops", int64(f.BatchOps), 1, 1_000_000},
		{"flush-docs", int64(f.FlushDocs), 1, 100_000},
		{"coalesce-window", int64(f.CoalesceWindow), 1, 10_000_000},
		{"feedback-member", int64(f.FeedbackMember), -1, 255},
	}, f.numbers()...) {
		if n.n < n.from || n.n > n.to {
			faults = append(faults, fmt.Errorf("--%s: %d is not from %d to %d", n.flag, n.n, n.from, n.to))
		}
	}
	for _, n := range append([]sizeRange{
		{"batch-bytes", f.BatchBytes, 1, 1 << 40},
		{"flush-bytes", f.FlushBytes, 1, 1 << 30},
	}, f.sizes()...) {
		if n.n < n.from || n.n > n.to {
			faults = append(faults, fmt.Errorf("--%s: %s is not from %s to %s", n.flag, n.n, n.from, n.to))
		}
	}
	if least := f.leastMemory(); f.Memory != 0 && int64(f.Memory) < least {
		faults = append(faults, fmt.Errorf("--memory: %s is less than %s", f.Memory, cli.Size(least)))
	}
	for _, d := range []timeRange{
		{"delay", f.Delay, 0},
		{"checkpoint-interval", f.CheckpointInterval, time.Millisecond},
		{"cut-interval", f.CutInterval, 0},
		{"verify-every", f.VerifyEvery, time.Second},
		{"max-lag", f.MaxLag, time.Second},
		{"await", f.Await, 10 * time.Millisecond},
		{"drain-timeout", f.DrainTimeout, 0},
		{"selection-timeout", f.SelectionTimeout, time.Millisecond},
		{"lease-ttl", f.LeaseTTL, time.Second},
		{"lease-renew", f.LeaseRenew, 100 * time.Millisecond},
		{"spool-wait", f.SpoolWait, time.Second},
		{"source-wait", f.SourceWait, time.Second},
	} {
		if d.d < d.from {
			faults = append(faults, fmt.Errorf("--%s: %s is less than %s", d.flag, d.d, d.from))
		}
	}
	if f.LeaseRenew > f.LeaseTTL/4 {
		faults = append(faults, fmt.Errorf("--lease-renew: %s is more than a fourth of --lease-ttl, %s", f.LeaseRenew, f.LeaseTTL))
	}
	return errors.Join(faults...)
}

// checkSpillDir reports early an error that otherwise the first large
// transaction would cause.
func (f *runFlags) checkSpillDir() error {
	if f.SpillDir == "" {
		return nil
	}
	info, err := os.Stat(f.SpillDir)
	switch {
	case err != nil:
		return fmt.Errorf("--spill-dir: %w", err)
	case !info.IsDir():
		return fmt.Errorf("--spill-dir: %s is not a directory", f.SpillDir)
	}
	return nil
}

func (f *runFlags) checkStart() error {
	if f.StartAt.said && f.StartAt.String() == "" {
		return errors.New("--start-at is empty: give copy, now, or a point in time")
	}
	ahead := time.Now().Add(time.Minute)
	for flag, m := range map[string]moment{"start-at": f.StartAt.moment, "copied-until": f.CopiedUntil} {
		if m.given() && time.Unix(int64(m.at.T), 0).After(ahead) {
			return fmt.Errorf("--%s: %s is in the future", flag, m)
		}
	}
	switch {
	case f.CopiedUntil.now:
		return errors.New("--copied-until: give the time when the copy was finished; it is stored, so the link may be started again later")
	case f.CopiedUntil.given() && !f.StartAt.given():
		return errors.New("--copied-until needs --start-at: when that copy began")
	case f.CopiedUntil.given() && !f.AllowExisting:
		return errors.New("--copied-until needs --allow-existing")
	case f.CopiedUntil.given() && oplog.CompareTimestamps(f.CopiedUntil.last(), f.StartAt.at) < 0:
		return errors.New("--copied-until is before --start-at")
	}
	return nil
}

func checkAddress(flag, address string) error {
	_, port, err := net.SplitHostPort(address)
	if err == nil {
		_, err = strconv.ParseUint(port, 10, 16)
	}
	if err != nil {
		return fmt.Errorf("%s: %q is not of the form HOST:PORT", flag, address)
	}
	return nil
}

// pipeline returns the pipeline's settings, except those that need a
// connection.
func (f *runFlags) pipeline(p *plan) pipeline.Config {
	cfg := pipeline.Config{
		Link: f.Link, MetaDB: f.MetadataDB, Scope: p.scope,
		Filters: &checkpoint.Filters{Include: f.Include, Exclude: f.Exclude, Map: f.Map, UsersAndRoles: f.UsersAndRoles},
		StartAt: f.StartAt.at, Copy: f.copying(), RelayBytes: int64(f.RelayLog),
		Await: f.Await, Rules: f.rules(p.source),
		Memory: f.linkMemory(int64(f.Memory)), BatchOps: f.BatchOps, BatchBytes: int64(f.BatchBytes), Delay: f.Delay, SpillDir: f.SpillDir,
		Writers: f.Writers, Relaxed: f.Transactions == "relaxed", ReportDivergence: f.OnDivergence == "report",
		UniqueIndexes: ddl.Relaxed,
		FlushDocs:     f.FlushDocs, FlushBytes: int(f.FlushBytes), CoalesceWindow: f.CoalesceWindow,
		CheckpointInterval: f.CheckpointInterval, CutInterval: f.CutInterval, Guard: guard.Mode(f.Guard),
		Lease: standby.Options{
			TTL: f.LeaseTTL, Every: f.LeaseRenew, SpoolWait: f.SpoolWait, TakeOver: f.Takeover, Once: f.Once,
		},
	}
	if f.UniqueIndexes == "serialized" {
		cfg.UniqueIndexes = ddl.Serialized
	}
	if f.CopiedUntil.given() {
		// The entry that has the term may not exist yet.
		cfg.CopiedUntil = oplog.OpTime{TS: f.CopiedUntil.last(), Term: oplog.UninitializedTerm}
	}
	return cfg
}

// rules returns the rules for choosing a sync source. Flags take precedence
// over the connection string.
func (f *runFlags) rules(source *driver.Options) syncsource.Rules {
	r := syncsource.Rules{MaxLag: f.MaxLag, Pinned: f.SyncSource, Delay: f.Delay}
	if source == nil {
		return r
	}
	said := source.ReadPreference()
	switch {
	case f.ReadPreference != "auto":
		r.Mode = syncsource.Mode(f.ReadPreference)
	case said.Mode != "primary": // which is also the default
		r.Mode = syncsource.Mode(said.Mode)
	}
	r.TagSets = said.Tags
	if len(f.ReadTags) > 0 {
		r.TagSets = nil
		for _, t := range f.ReadTags {
			r.TagSets = append(r.TagSets, t)
		}
	}
	return r
}

// timestamp is the log's text form of one.
func timestamp(ts bson.Timestamp) string {
	return strconv.FormatUint(uint64(ts.T), 10) + ":" + strconv.FormatUint(uint64(ts.I), 10)
}
