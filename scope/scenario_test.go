package scope

import (
	"fmt"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"

	"github.com/oplogrep/replicator/oplog"
)

// The scenarios have two commands. "scope" sets the lists, one flag per line, and
// prints the description or the faults; "target" asks about namespaces.
func TestScenarios(t *testing.T) {
	datadriven.Walk(t, "testdata/scenarios", func(t *testing.T, path string) {
		var s *Scope
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			switch d.Cmd {
			case "scope":
				var err error
				if s, err = New(readConfig(t, d.Input)); err != nil {
					return err.Error()
				}
				return s.Describe()
			case "target":
				return targets(t, s, d.Input)
			case "source":
				return sources(s, d.Input)
			default:
				t.Fatalf("unknown command %s", d.Cmd)
				return ""
			}
		})
	})
}

func readConfig(t *testing.T, input string) Config {
	var cfg Config
	for line := range strings.Lines(input) {
		flag, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
		switch flag {
		case "include":
			cfg.Include = append(cfg.Include, value)
		case "exclude":
			cfg.Exclude = append(cfg.Exclude, value)
		case "map":
			cfg.Map = append(cfg.Map, value)
		case "meta":
			cfg.MetaDB = value
		case "users":
			cfg.UsersAndRoles = true
		default:
			t.Fatalf("unknown flag %q", flag)
		}
	}
	return cfg
}

func targets(t *testing.T, s *Scope, input string) string {
	var b strings.Builder
	for name := range strings.FieldsSeq(input) {
		ns := oplog.Namespace(name)
		to, ok := s.Target(ns)
		if again, okAgain := s.Target(ns); again != to || okAgain != ok {
			t.Errorf("%s goes to %q, %v; asked again to %q, %v", ns, to, ok, again, okAgain)
		}
		switch {
		case !ok && to != "":
			t.Errorf("%s is not mirrored, and goes to %q", ns, to)
		case !ok:
			fmt.Fprintf(&b, "%s -\n", ns)
		case to == ns:
			fmt.Fprintf(&b, "%s same\n", ns)
		default:
			fmt.Fprintf(&b, "%s %s\n", ns, to)
		}
		if from, hasSource := s.Source(to); ok && (!hasSource || from != ns) {
			t.Errorf("%s goes to %s, which comes from %q, %v", ns, to, from, hasSource)
		}
	}
	return b.String()
}

func sources(s *Scope, input string) string {
	var b strings.Builder
	for name := range strings.FieldsSeq(input) {
		from, ok := s.Source(oplog.Namespace(name))
		if !ok {
			from = "-"
		}
		fmt.Fprintf(&b, "%s %s\n", name, from)
	}
	return b.String()
}
