package main

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"log/slog"
	"maps"
	"math/big"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alecthomas/kong"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/cli"
	"github.com/oplogrep/replicator/internal/mongo/driver"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/pipeline"
	"github.com/oplogrep/replicator/pipeline/monitor"
	"github.com/oplogrep/replicator/preflight"
	"github.com/oplogrep/replicator/scope"
)

// becomes is all that the flags of run become, other than by what run asks for by
// itself.
type becomes struct {
	Source, Target *driver.Options
	Pipeline       pipeline.Config
	Preflight      preflight.Config
	Run            struct {
		JSON, Debug  bool
		Progress     string
		DrainTimeout time.Duration
	}
}

// flagRow says what differs where a flag is given, FIELD=VALUE. Flags that mean
// nothing without others are compared with those others alone.
type flagRow struct {
	flag string
	with []string // other flags
	want []string
	by   string // the test that shows what the flag does, where it becomes no setting
}

// flagTable has a row for each flag of run.
func flagTable(pemFile, secret, dir string) []flagRow {
	const at = "--start-at=1600000000"
	rows := []flagRow{
		{flag: "target=mongodb://w:x@c.example", want: []string{"Target.uri.hosts=[c.example]"}},
		{flag: "link=m", want: []string{"Pipeline.Copy.SpoolDir=/caches/replicator/spool/m", "Pipeline.Link=m", "Preflight.Link=m", "Preflight.SpoolDir=/caches/replicator/spool/m"}},
		{flag: "metadata-db=meta", want: both("MetaDB=meta", "Scope.cfg.MetaDB=meta")},

		{flag: "include=shop", want: append(both("Scope.cfg.Include=[shop]"), "Pipeline.Filters.Include=[shop]", "Preflight.Include=[shop]")},
		{flag: "exclude=shop", want: append(both("Scope.cfg.Exclude=[shop]"), "Pipeline.Filters.Exclude=[shop]")},
		{flag: "map=shop=store", with: []string{"--include=shop"}, want: append(both("Scope.cfg.Map=[shop=store]"), "Pipeline.Filters.Map=[shop=store]")},
		{flag: "users-and-roles", want: append(both("Scope.cfg.UsersAndRoles=true"), "Pipeline.Filters.UsersAndRoles=true", "Preflight.UsersAndRoles=true")},

		{flag: "start-at=1600000000,3", want: append(noCopy, "Pipeline.StartAt={1600000000 3}", "Preflight.StartAt={1600000000 3}")},
		{flag: "allow-existing", want: append(noCopy, "Preflight.AllowExisting=true")},
		{
			flag: "copied-until=1600000005,2", with: []string{at, "--allow-existing"},
			want: []string{"Pipeline.CopiedUntil.TS={1600000005 2}", "Pipeline.CopiedUntil.Term=-1", "Preflight.Copied=true"},
		},

		{flag: "drop-existing", want: []string{"Pipeline.Copy.DropExisting=true", "Preflight.DropExisting=true"}},
		{flag: "clone-workers=5", want: []string{"Pipeline.Copy.Workers=5"}},
		{flag: "range-bytes=1GiB", want: []string{"Pipeline.Copy.RangeBytes=1073741824"}},
		{flag: "indexes=before", want: []string{"Pipeline.Copy.IndexesFirst=true"}},
		{flag: "index-workers=3", want: []string{"Pipeline.Copy.IndexWorkers=3"}},
		{flag: "spool-dir=/s", want: []string{"Pipeline.Copy.SpoolDir=/s/l", "Preflight.SpoolDir=/s/l"}},
		{flag: "spool-bytes=2GiB", want: []string{"Pipeline.Copy.SpoolBytes=2147483648", "Preflight.SpoolBytes=2147483648"}},
		{flag: "spool-free=2GiB", want: []string{"Pipeline.Copy.SpoolFree=2147483648", "Preflight.SpoolFree=2147483648"}},
		{flag: "relay-log=256MiB", want: []string{"Pipeline.RelayBytes=268435456"}},
		{flag: "max-bytes-per-second=4MiB", want: []string{"Pipeline.Copy.BytesPerSecond=4194304"}},
		{flag: "max-ops-per-second=5", want: []string{"Pipeline.Copy.OpsPerSecond=5"}},
		{flag: "source-wait=6h", want: []string{"Pipeline.Copy.SourceWait=6h0m0s"}},

		{flag: "transactions=relaxed", want: []string{"Pipeline.Relaxed=true"}},
		{flag: "on-divergence=report", want: []string{"Pipeline.ReportDivergence=true"}},
		{flag: "unique-indexes=serialized", want: []string{"Pipeline.UniqueIndexes=2", "Preflight.Fingerprint=serialized"}},
		{flag: "writers=7", want: []string{"Pipeline.Copy.Workers=7", "Pipeline.Writers=7"}},
		{flag: "batch-ops=7", want: []string{"Pipeline.BatchOps=7"}},
		{flag: "batch-bytes=7MiB", want: []string{"Pipeline.BatchBytes=7340032"}},
		{flag: "flush-docs=7", want: []string{"Pipeline.FlushDocs=7"}},
		{flag: "flush-bytes=7MiB", want: []string{"Pipeline.FlushBytes=7340032"}},
		{flag: "coalesce-window=7", want: []string{"Pipeline.CoalesceWindow=7"}},
		{flag: "delay=7s", want: append(both("Rules.Delay=7s"), "Pipeline.Delay=7s")},
		{flag: "checkpoint-interval=7s", want: []string{"Pipeline.CheckpointInterval=7s"}},
		{flag: "cut-interval=7s", want: []string{"Pipeline.CutInterval=7s"}},
		{flag: "guard=stop", want: []string{"Pipeline.Guard=stop", "Preflight.Guard=stop"}},

		{flag: "read-preference=secondary", want: both("Rules.Mode=secondary")},
		{flag: "read-tags=dc=east", want: both("Rules.TagSets=[map[dc:east]]")},
		{flag: "sync-source=a.example:7", want: both("Rules.Pinned=a.example:7")},
		{flag: "max-lag=7s", want: both("Rules.MaxLag=7s")},
		{flag: "await=7s", want: []string{"Pipeline.Await=7s"}},

		{flag: "memory=512MiB", want: []string{"Pipeline.Memory=536870912"}},
		{flag: "spill-dir=" + dir, want: []string{"Pipeline.SpillDir=" + dir}},

		{flag: "feedback=document", want: []string{"Pipeline.Feedback=document", "Preflight.Feedback=document"}},
		{flag: "feedback-member=3", want: []string{"Pipeline.Feedback=member", "Pipeline.MemberID=3"}},

		{flag: "lease-ttl=20s", want: []string{"Pipeline.Lease.TTL=20s"}},
		{flag: "lease-renew=1s", want: []string{"Pipeline.Lease.Every=1s"}},
		{flag: "spool-wait=1h", want: []string{"Pipeline.Lease.SpoolWait=1h0m0s"}},
		{flag: "takeover", want: []string{"Pipeline.Lease.TakeOver=true"}},
		{flag: "once", want: []string{"Pipeline.Lease.Once=true"}},
		{flag: "drain-timeout=7s", want: []string{"Run.DrainTimeout=7s"}},
		{flag: "log-format=text", want: []string{"Run.JSON=false"}},
		{flag: "progress=none", want: []string{"Run.Progress=none"}},
		{flag: "log-level=debug", want: []string{"Run.Debug=true"}},

		{flag: "listen", by: "TestRunMirrorsAndDrains"},
		{flag: "listen-hosts", by: "TestServed"},
		{flag: "tls-cert", by: "TestServed"},
		{flag: "tls-key", by: "TestServed"},
		{flag: "token-file", by: "TestServed"},
		{flag: "pprof", by: "TestServed"},
		{flag: "verify", by: "TestVerifyContinuous"},
		{flag: "verify-every", by: "TestVerifyContinuous"},
		{flag: "verify-budget", by: "TestVerifyContinuous"},
		{flag: "config", by: "TestPrecedence"},
		{flag: "print-config", by: "TestPrecedence"},
		{flag: "check", by: "TestRunMirrorsAndDrains"},
		{flag: "help", by: "TestCLI"},

		{flag: "source=mongodb://w:x@c.example", want: []string{"Source.uri.hosts=[c.example]"}},
		{flag: "selection-timeout=7s", want: []string{
			"Source.selection=7000000000", "Source.uri.options.serverSelectionTimeoutMS=7000", "Target.selection=7000000000", "Target.uri.options.serverSelectionTimeoutMS=7000",
		}},
	}
	for side, field := range map[string]string{"source": "Source.", "target": "Target."} {
		for _, row := range []flagRow{
			{flag: "username=u", want: []string{"uri.user=u"}},
			{flag: "password-file=" + secret, want: []string{"uri.password=sesame"}},
			{flag: "auth-source=db", want: []string{"uri.options.authSource=db"}},
			{flag: "tls", want: []string{"uri.options.tls=true"}},
			{flag: "tls-ca-file=" + pemFile, with: []string{"--" + side + "-tls"}, want: []string{"uri.options.tlsCAFile=" + pemFile}},
			{flag: "tls-certificate-key-file=" + pemFile, with: []string{"--" + side + "-tls"}, want: []string{"uri.options.tlsCertificateKeyFile=" + pemFile}},
			{flag: "host-map=A:1=b:2", want: []string{"hosts=map[a:1:b:2]"}},
		} {
			for i := range row.want {
				row.want[i] = field + row.want[i]
			}
			row.flag = side + "-" + row.flag
			rows = append(rows, row)
		}
	}
	return rows
}

// noCopy is what follows from a start without a copy.
var noCopy = []string{"Pipeline.Copy.Wanted=false", "Preflight.Copy=false"}

// both are fields of the link's config and of that of the startup checks.
func both(fields ...string) []string {
	var all []string
	for _, f := range fields {
		all = append(all, "Pipeline."+f, "Preflight."+f)
	}
	return all
}

// noFlag are the settings that no flag changes.
var noFlag = map[string]string{
	"Pipeline.WindowBytes":         "a share of --memory",
	"Pipeline.Filters.Reversed":    "set by run, for a way back",
	"Pipeline.Scope.cfg.Reversed":  "set by run, for a way back",
	"Preflight.Scope.cfg.Reversed": "set by run, for a way back",
	"Pipeline.KeepAlive":           "the members' own",
	"Pipeline.ShareOps":            "tests change it",
	"Pipeline.ShareRest":           "tests change it",
	"Pipeline.RetryMin":            "tests change it",
	"Pipeline.TooLargeFor":         "tests change it",
	"Pipeline.RetryMax":            "tests change it",
	"Pipeline.OnFlush":             "for bench",
	"Pipeline.OnCut":               "for bench",
	"Pipeline.OnRepaired":          "set by mirror",
	"Pipeline.Observer":            "set by mirror",
	"Pipeline.SetLogLevel":         "set by mirror",
	"Pipeline.Verification":        "set by mirror",
	"Pipeline.Copy.SpoolWriter":    "tests change it",
	"Pipeline.Lease.Process":       "set by mirror",
	"Pipeline.Lease.CutOff":        "a minute, as the health check",
	"Pipeline.Lease.OfferFor":      "as long as looking takes",
	"Pipeline.Lease.Target":        "connected by run",
	"Pipeline.Registry":            "set by mirror",
	"Pipeline.Vacancy":             "set by run, from the startup checks: see TestRunLate",
	"Pipeline.Copy.MaxCopies":      "a server's own",
	"Pipeline.Rules.AcceptEqual":   "always so in a link",
	"Preflight.Back":               "set by run, for a way back",
	"Preflight.Now":                "tests change it",
	"Preflight.Source":             "connected by run",
	"Preflight.Target":             "connected by run",
	"Preflight.Members":            "connected by run",
	"Preflight.Waits":              "set by run: it prints",
}

// Each flag of run is explained in docs/configuration.md.
func TestFlagsDocumented(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/configuration.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range command(t).Selected().Flags {
		// Those of the target are listed as those of the source.
		name := strings.Replace(f.Name, "target-", "source-", 1)
		if text := string(page); !strings.Contains(text, "`--"+f.Name+"`") && !strings.Contains(text, "`--"+name+"`") {
			t.Errorf("docs/configuration.md does not explain --%s", f.Name)
		}
	}
}

// Every flag of run gets to where it counts and nowhere else, and every setting is
// there for a flag.
func TestWhatFlagsBecome(t *testing.T) {
	tests := testNames(t)
	t.Setenv("XDG_CACHE_HOME", "/caches")
	dir := t.TempDir()
	t.Chdir(dir) // so that names of files need not be encoded in connection strings
	secret, pemFile := "password", "both.pem"
	must.Succeed(t, os.WriteFile(secret, []byte("sesame\n"), 0o600))
	writeKeyPair(t, pemFile)
	seen, rows := map[string]bool{}, map[string]flagRow{}
	plain := fields(t)
	for _, row := range flagTable(pemFile, secret, dir) {
		name, _, _ := strings.Cut(row.flag, "=")
		if _, twice := rows[name]; twice {
			t.Errorf("--%s has two rows", name)
		}
		if rows[name] = row; row.by != "" {
			continue
		}
		before := plain
		if row.with != nil {
			before = fields(t, row.with...)
		}
		var got []string
		after := fields(t, append(slices.Clone(row.with), "--"+row.flag)...)
		for _, at := range slices.Sorted(maps.Keys(merged(before, after))) {
			if before[at] != after[at] {
				seen[at] = true
				got = append(got, at+"="+after[at])
			}
		}
		slices.Sort(row.want)
		if !slices.Equal(got, row.want) {
			t.Errorf("--%s changes\n\t%s\nwant\n\t%s", row.flag, strings.Join(got, "\n\t"), strings.Join(row.want, "\n\t"))
		}
	}
	for _, f := range command(t).Selected().AllFlags(true) {
		for _, f := range f {
			row, ok := rows[f.Name]
			if delete(rows, f.Name); !ok {
				t.Errorf("flag --%s has no row: say what it becomes", f.Name)
			}
			if row.by != "" && !tests[row.by] {
				t.Errorf("--%s: there is no test %s", f.Name, row.by)
			}
		}
	}
	for name := range rows {
		t.Errorf("there is no flag --%s", name)
	}
	for at := range plain {
		setting := strings.HasPrefix(at, "Pipeline.") || strings.HasPrefix(at, "Preflight.")
		if setting && !seen[at] && !leftToOthers(at) {
			t.Errorf("no flag changes %s", at)
		}
	}
}

func merged(a, b map[string]string) map[string]string {
	all := maps.Clone(a)
	maps.Copy(all, b)
	return all
}

// leftToOthers reports whether a setting is one that no flag is to change.
func leftToOthers(at string) bool {
	last := at[strings.LastIndexByte(at, '.')+1:]
	rest, checked := strings.CutPrefix(at, "Preflight.Rules.")
	_, known := noFlag[at]
	known = known || strings.HasPrefix(at, "Pipeline.until.") // not for others to set
	_, rule := noFlag["Pipeline.Rules."+rest]
	return known || checked && rule || strings.ToLower(last[:1]) == last[:1] // none of our business
}

// testNames are those of this package.
func testNames(t *testing.T) map[string]bool {
	names := map[string]bool{}
	files := must.Get(filepath.Glob("*_test.go"))(t)
	for _, file := range files {
		text := must.Get(os.ReadFile(file))(t)
		for line := range strings.Lines(string(text)) {
			if name, ok := strings.CutPrefix(line, "func Test"); ok {
				name, _, _ = strings.Cut(name, "(")
				names["Test"+name] = true
			}
		}
	}
	return names
}

// command parses a command line of run.
func command(t *testing.T, args ...string) *kong.Context {
	t.Helper()
	parser := must.Get(kong.New(&commands{}, kong.ExplicitGroups(groups), cli.Numbers(), kong.Resolvers(newSettings(nil)), kong.Bind(newSettings(nil))))(t)
	return must.Get(parser.Parse(append([]string{"run", "--source=mongodb://w:x@a.example", "--target=mongodb://w:x@b.example", "--link=l"}, args...)))(t)
}

// fields are all settings of a command line, by their names.
func fields(t *testing.T, args ...string) map[string]string {
	t.Helper()
	c, ok := reflect.TypeAssert[*runCommand](command(t, args...).Selected().Target.Addr())
	if !ok {
		t.Fatal("run has another type")
	}
	p, err := c.check()
	if err != nil {
		t.Fatalf("%q: %v", args, err)
	}
	var all becomes
	v := c.voice(cli.Output{Results: &bytes.Buffer{}, Complaints: &bytes.Buffer{}})
	all.Run.JSON, all.Run.Debug, all.Run.Progress = v.asJSON, v.log.Enabled(t.Context(), slog.LevelDebug), v.copy.mode
	all.Run.DrainTimeout = drainTime(t, c)
	all.Preflight = c.preflight(p, nil, nil)
	_, all.Preflight.Fingerprint, _ = strings.Cut(all.Preflight.Fingerprint, ";unique=")
	all.Preflight.Source, all.Preflight.Target, all.Preflight.Members = nil, nil, nil
	c.chooseFeedback(p, &preflight.Report{MayReport: true}, v.log)
	all.Source, all.Target, all.Pipeline = p.source, p.target, p.pipeline
	into := map[string]string{}
	flatten(into, "", reflect.ValueOf(all))
	return into
}

// drainTime is how long after a signal the link is stopped.
func drainTime(t *testing.T, c *runCommand) (d time.Duration) {
	synctest.Test(t, func(*testing.T) {
		began := time.Now()
		hard, stop := context.WithCancelCause(context.Background())
		c.drain(hard, stop, func() monitor.Snapshot { return monitor.Snapshot{} }, slog.New(slog.DiscardHandler))
		d = time.Since(began)
	})
	return d
}

// flatten writes the fields below v, which need not be exported, as texts.
func flatten(into map[string]string, at string, v reflect.Value) {
	switch {
	case v.Kind() == reflect.Pointer && !v.IsNil():
		flatten(into, at, v.Elem())
	case v.Kind() == reflect.Interface && !v.IsNil():
		flatten(into, at, v.Elem())
	case v.Type() == reflect.TypeFor[scope.Scope]():
		flatten(into, at+".cfg", v.FieldByName("cfg")) // what it was made of
	case v.Type() == reflect.TypeFor[bson.Timestamp]() || v.Kind() != reflect.Struct && !isOptions(v):
		into[at] = fmt.Sprint(v)
	case isOptions(v):
		for i := range v.Len() {
			into[at+"."+v.Index(i).Field(0).String()] = v.Index(i).Field(1).String()
		}
	default:
		for i := range v.NumField() {
			name := v.Type().Field(i).Name
			if name == "parsed" { // the driver's form of uri
				continue
			}
			if v.Type() == reflect.TypeFor[driver.Options]() && (name == "config" || name == "read") { // what uri was made of
				continue
			}
			flatten(into, strings.TrimPrefix(at+"."+name, "."), v.Field(i))
		}
	}
}

// isOptions reports whether v are the options of a connection string.
func isOptions(v reflect.Value) bool {
	return v.Kind() == reflect.Slice && v.Type().Elem().Name() == "option"
}

// writeKeyPair writes a certificate and its key.
func writeKeyPair(t *testing.T, file string) {
	t.Helper()
	public, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true}
	cert, err := x509.CreateCertificate(rand.Reader, template, template, public, private)
	if err != nil {
		t.Fatal(err)
	}
	key, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	text := append(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key})...)
	must.Succeed(t, os.WriteFile(file, text, 0o600))
}
