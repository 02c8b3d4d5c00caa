package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/alecthomas/kong"
	"go.yaml.in/yaml/v3"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/internal/cli"
	"github.com/oplogrep/replicator/internal/mongo/driver"
)

// linksFile has the settings that all agents of a fleet share: the links, and where they coordinate.
type linksFile struct {
	fleetFlags
	links []*fileLink
}

// fleetFlags are the settings at the top of a links file.
type fleetFlags struct {
	Control          string
	ControlLogin     loginFlags    `embed:"" prefix:"control-"`
	ControlDB        string        `name:"control-db"`
	Group            string        `default:"links"`
	LeaseTTL         time.Duration `name:"lease-ttl" default:"10s"`
	LeaseRenew       time.Duration `name:"lease-renew" default:"2s"`
	SelectionTimeout time.Duration `default:"30s"`
}

// fileLink is one link of the file.
type fileLink struct {
	name string
	line int
	runFlags
	// settings are all of the link's, to be compared.
	settings string
	// fault is an error on this machine only, such as a missing password file. target is nil
	// then.
	fault  error
	target *driver.Options
}

// ofProcess are the settings of run that belong to the process, with the agent's flags for them,
// or to one command line.
var ofProcess = map[string]string{
	"listen": "--listen", "listen-hosts": "--listen-hosts", "tls-cert": "--tls-cert", "tls-key": "--tls-key", "token-file": "--token-file", "pprof": "--pprof",
	"memory": "--memory", "log-format": "--log-format", "log-level": "--log-level", "drain-timeout": "--drain-timeout",
	"progress": "", "takeover": "", "once": "",
}

// fileReader reads a links file.
type fileReader struct {
	name    string
	environ []string
	faults  []error
	known   []string // the settings of links
}

// pair is a key with its value.
type pair struct{ key, value *yaml.Node }

// loadLinks reads a links file.
func loadLinks(name string, environ []string) (*linksFile, error) {
	data, err := os.ReadFile(name)
	if err != nil {
		if e, ok := errors.AsType[*fs.PathError](err); ok {
			err = e.Err
		}
		return nil, fmt.Errorf("read the links in %s: %w", name, err)
	}
	return parseLinks(name, data, environ)
}

// parseLinks parses a links file. The error has all faults.
func parseLinks(name string, data []byte, environ []string) (*linksFile, error) {
	r := &fileReader{name: name, environ: environ}
	top, err := oneDocument(data)
	if err != nil {
		return nil, fmt.Errorf("read the links in %s: %w", name, err)
	}
	if top == nil || top.Kind != yaml.MappingNode {
		return nil, fmt.Errorf("read the links in %s: want lines of the form NAME: VALUE, with links: among them", name)
	}
	f := &linksFile{}
	fleet, trial := newGrammar(&f.fleetFlags), newGrammar(&runFlags{})
	r.known = trial.names()
	entries := r.pairs(top, append([]string{"defaults", "links"}, fleet.names()...))
	defaults, links := r.section(entries, "defaults", r.known), r.section(entries, "links", nil)
	for _, p := range defaults {
		if p.key.Value == "link" {
			r.fault(p.key.Line, "defaults: each link has a name of its own")
		}
	}
	r.parse(fleet, "", entries)
	if len(links) == 0 && len(r.faults) == 0 {
		r.fault(top.Line, "there is no link: want links: with an entry for each")
	}
	for _, p := range links {
		r.link(f, p, defaults)
	}
	r.checkSame(f)
	if len(r.faults) == 0 {
		r.checkFleet(f)
	}
	return f, errors.Join(r.faults...)
}

func (r *fileReader) fault(line int, format string, args ...any) {
	r.faults = append(r.faults, fmt.Errorf("%s line %d: %s", r.name, line, fmt.Sprintf(format, args...)))
}

// pairs returns the entries of a mapping. A key may be there once, and must be one of those that
// are known, if that is not nil.
func (r *fileReader) pairs(node *yaml.Node, known []string) map[string]pair {
	all := map[string]pair{}
	for i := 0; i+1 < len(node.Content); i += 2 {
		key, value := node.Content[i], node.Content[i+1]
		before, twice := all[key.Value]
		flag, process := ofProcess[key.Value]
		unknown := known != nil && !slices.Contains(known, key.Value)
		switch {
		case key.Kind != yaml.ScalarNode:
			r.fault(key.Line, "want a line of the form NAME: VALUE")
		case twice:
			r.fault(key.Line, "%q is there twice, first in line %d", key.Value, before.key.Line)
		case unknown && process && flag != "":
			r.fault(key.Line, "%q is a setting of the process, not of a link: use replicator agent %s", key.Value, flag)
		case unknown && process:
			r.fault(key.Line, "%q is for replicator run, not for a link of an agent", key.Value)
		case unknown:
			r.fault(key.Line, "there is no setting %q%s", key.Value, meant(key.Value, known))
		default:
			all[key.Value] = pair{key, value}
		}
	}
	return all
}

// section takes a section out of the file's entries. Its own are in the order of their lines.
func (r *fileReader) section(entries map[string]pair, name string, known []string) []pair {
	p, ok := entries[name]
	delete(entries, name)
	if !ok || p.value.Tag == "!!null" {
		return nil
	}
	if p.value.Kind != yaml.MappingNode {
		r.fault(p.value.Line, "%s: want lines of the form NAME: VALUE", name)
		return nil
	}
	list := slices.Collect(maps.Values(r.pairs(p.value, known)))
	slices.SortFunc(list, func(a, b pair) int { return a.key.Line - b.key.Line })
	return list
}

// grammar is a set of settings, and their parser.
type grammar struct {
	parser *kong.Kong
	values map[string]any
}

// newGrammar makes the grammar of a struct of flags, a pointer to which it gets.
func newGrammar(flags any) *grammar {
	g := &grammar{values: map[string]any{}}
	var err error
	g.parser, err = kong.New(flags, kong.Name("links"), kong.NoDefaultHelp(), kong.Writers(io.Discard, io.Discard), cli.Numbers(), kong.ExplicitGroups(groups),
		kong.Resolvers(kong.ResolverFunc(func(_ *kong.Context, _ *kong.Path, flag *kong.Flag) (any, error) { return g.values[flag.Name], nil })))
	if err != nil {
		panic(err) // Invariant: our own flags are valid.
	}
	return g
}

// names returns the settings that a links file may have.
func (g *grammar) names() []string {
	var names []string
	for _, f := range g.parser.Model.Flags {
		if _, process := ofProcess[f.Name]; !process {
			names = append(names, f.Name)
		}
	}
	return names
}

// parse sets flags from entries, and from the environment if there is no entry: the file is more
// specific to a link than the settings of the process.
func (r *fileReader) parse(g *grammar, of string, entries map[string]pair) (ok bool) {
	before := len(r.faults)
	for _, flag := range g.parser.Model.Flags {
		if _, process := ofProcess[flag.Name]; process || flag.Name == "link" && entries["link"].key == nil {
			continue
		}
		var value any
		var err error
		origin := "environment " + envName(flag.Name)
		if p, found := entries[flag.Name]; found {
			origin = fmt.Sprintf("%s line %d: %s%s", r.name, p.key.Line, of, flag.Name)
			value, err = fromNode(p.value, flag)
		} else if text, found := lookup(r.environ, flag.Name); found {
			value, err = fromEnv(text, flag)
		} else {
			continue
		}
		if err = try(flag, value, err); err != nil {
			r.faults = append(r.faults, fmt.Errorf("%s: %w", origin, err))
		}
		g.values[flag.Name] = value
	}
	if len(r.faults) > before {
		return false
	}
	if _, err := g.parser.Parse(nil); err != nil {
		r.faults = append(r.faults, fmt.Errorf("%s: %s%w", r.name, of, err))
	}
	return len(r.faults) == before
}

// link reads one link.
func (r *fileReader) link(f *linksFile, p pair, defaults []pair) {
	l := &fileLink{name: p.key.Value, line: p.key.Line}
	of := "link " + l.name + ": "
	if !checkpoint.ValidLink(l.name) {
		r.fault(l.line, "link %q: a name has letters, digits, dots, _ and -, 64 at most", l.name)
		return
	}
	own := map[string]pair{}
	switch {
	case p.value.Kind == yaml.MappingNode:
		own = r.pairs(p.value, r.known)
	case p.value.Tag != "!!null":
		r.fault(p.value.Line, "%swant lines of the form NAME: VALUE", of)
		return
	}
	for _, d := range defaults {
		if _, ok := own[d.key.Value]; !ok {
			own[d.key.Value] = d
		}
	}
	g := newGrammar(&l.runFlags)
	if !r.parse(g, of, own) {
		return
	}
	if l.Link == "" {
		l.Link = l.name
	}
	plan, err := l.check()
	switch {
	case err == nil:
		l.target = plan.target
	case is[*fs.PathError](err):
		l.fault = err
	default:
		for _, e := range split(err) {
			r.fault(l.line, "%s%v", of, e)
		}
		return
	}
	l.settings = fmt.Sprint(g.values, err)
	f.links = append(f.links, l)
}

// split returns the errors that were joined.
func split(err error) []error {
	if list, ok := err.(interface{ Unwrap() []error }); ok {
		return list.Unwrap()
	}
	return []error{err}
}

// checkSame refuses two links that would be one in the target.
func (r *fileReader) checkSame(f *linksFile) {
	for i, l := range f.links {
		for _, before := range f.links[:i] {
			if l.Link == before.Link && l.MetadataDB == before.MetadataDB && sameSet(l.target, before.target) {
				r.fault(l.line, "links %s and %s (line %d) are both %s in the same target: give one of them another link: NAME", l.name, before.name, before.line, l.Link)
			}
		}
	}
}

// sameSet reports whether two deployments have a host in common.
func sameSet(a, b *driver.Options) bool {
	if a == nil || b == nil {
		return a == b
	}
	for _, host := range a.Hosts() {
		if slices.ContainsFunc(b.Hosts(), func(h string) bool { return strings.EqualFold(h, host) }) {
			return true
		}
	}
	return false
}

// checkFleet checks the settings of the fleet. The control plane is the target of all links,
// unless the file names another one.
func (r *fileReader) checkFleet(f *linksFile) {
	if f.LeaseTTL < time.Second || f.LeaseRenew < 100*time.Millisecond || f.LeaseRenew > f.LeaseTTL/4 {
		r.faults = append(r.faults, fmt.Errorf("%s: lease-ttl %s, lease-renew %s: want a second or more, and 100ms to a fourth of that", r.name, f.LeaseTTL, f.LeaseRenew))
	}
	if f.Group == "" || len(f.Group) > 120 || strings.Contains(f.Group, "/") {
		r.faults = append(r.faults, fmt.Errorf("%s: group %q: want 1 to 120 bytes, without /", r.name, f.Group))
	}
	first := f.links[0]
	for _, l := range f.links[1:] {
		if f.Control == "" && (!sameSet(first.target, l.target) && first.Target != l.Target || first.MetadataDB != l.MetadataDB && f.ControlDB == "") {
			r.fault(l.line, "links %s and %s (line %d) have different targets, so that control: has to name the replica set where the agents coordinate",
				l.name, first.name, first.line)
			return
		}
	}
	if f.Control == "" {
		f.Control, f.ControlLogin, f.SelectionTimeout = first.Target, first.TargetLogin, first.SelectionTimeout
		if f.ControlDB == "" {
			f.ControlDB = first.MetadataDB
		}
	}
	if f.ControlDB == "" {
		f.ControlDB = "replicator"
	}
}

// control returns how to connect to the control plane.
func (f *linksFile) control() (*driver.Options, error) {
	return parseDeployment("control", f.ControlLogin.config(f.Control, f.SelectionTimeout))
}
