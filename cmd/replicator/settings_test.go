package main

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/alecthomas/kong"
	"go.yaml.in/yaml/v3"

	"github.com/oplogrep/replicator/initialsync"
	"github.com/oplogrep/replicator/internal/cli"
	"github.com/oplogrep/replicator/internal/testkit/must"
)

// invoke runs a command line with an environment of its own.
func invoke(t *testing.T, environ []string, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, complaints bytes.Buffer
	code = execute(cli.Ends{Soft: t.Context(), Hard: context.WithoutCancel(t.Context())}, args, environ, &out, &complaints)
	return code, out.String(), complaints.String()
}

func write(t *testing.T, text string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "settings.yaml")
	must.Succeed(t, os.WriteFile(name, []byte(text), 0o600))
	return name
}

// where is enough for a link to have settings that hold together.
const where = "source: mongodb://u:sesame42@a.example/\ntarget: mongodb://b.example/\nlink: l\n"

// printed returns the lines that --print-config printed, by setting, and checks
// that they can be read back.
func printed(t *testing.T, stdout string) map[string]string {
	t.Helper()
	var doc map[string]any
	if err := yaml.Unmarshal([]byte(stdout), &doc); err != nil {
		t.Fatalf("%v in\n%s", err, stdout)
	}
	lines := map[string]string{}
	for line := range strings.Lines(stdout) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), ": "); ok {
			lines[name] = value
		}
	}
	return lines
}

func TestPrecedence(t *testing.T) {
	file := write(t, where+"writers: 3\ninclude: [a, 'b.c,d']\ndelay: 2s\nread-tags: [dc=east, 'dc=west,disk=ssd']\nusers-and-roles: true\nexclude: x.y\n")
	tests := []struct {
		name    string
		environ []string
		args    []string
		want    map[string]string
	}{
		{"default and file", nil, nil, map[string]string{
			"writers": "3 # " + file + " line 4", "batch-ops": "5000 # default", "delay": "2s # " + file + " line 6", "include": "[a, 'b.c,d'] # " + file + " line 5",
			"users-and-roles": "true # " + file + " line 8", "exclude": "[x.y] # " + file + " line 9", "read-tags": "[dc=east, 'dc=west,disk=ssd'] # " + file + " line 7",
		}},
		{"environment goes before the file", []string{"REPLICATOR_WRITERS=4", "REPLICATOR_INCLUDE=e, f.g", "REPLICATOR_USERS_AND_ROLES=false"}, nil, map[string]string{
			"writers": "4 # environment REPLICATOR_WRITERS", "include": "[e, f.g] # environment REPLICATOR_INCLUDE", "delay": "2s # " + file + " line 6",
			"users-and-roles": "false # environment REPLICATOR_USERS_AND_ROLES",
		}},
		{"a flag goes before both", []string{"REPLICATOR_WRITERS=4"}, []string{"--writers=5", "--include=h", "--include=i.j,k"}, map[string]string{
			"writers": "5 # flag", "include": "[h, 'i.j,k'] # flag",
		}},
		{"a flag that says the default", []string{"REPLICATOR_WRITERS=4"}, []string{"--writers=16"}, map[string]string{"writers": "16 # flag"}},
		{"a variable set to nothing", []string{"REPLICATOR_WRITERS="}, nil, map[string]string{"writers": "3 # " + file + " line 4"}},
		{"a list as YAML", []string{`REPLICATOR_INCLUDE=['/a{1,2}\..*/', b]`}, nil, map[string]string{"include": `['/a{1,2}\..*/', b] # environment REPLICATOR_INCLUDE`}},
		{"a stray variable", []string{"REPLICATOR_PORT=tcp://10.0.0.1:80"}, nil, map[string]string{"# No setting": "REPLICATOR_PORT in the environment."}},
		{"a token is no stray variable", []string{"REPLICATOR_PORT=1", "REPLICATOR_TOKEN=fedcba9876543210"}, nil, map[string]string{"# No setting": "REPLICATOR_PORT in the environment."}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			for _, by := range []string{"flag", "environment"} {
				args, environ := append([]string{"run", "--print-config"}, tt.args...), tt.environ
				if by == "flag" {
					args = append(args, "--config="+file)
				} else {
					environ = append(environ, "REPLICATOR_CONFIG="+file)
				}
				code, stdout, stderr := invoke(t, environ, args...)
				if code != cli.ExitOK || stderr != "" {
					t.Fatalf("file by %s: code %d, %s", by, code, stderr)
				}
				got := printed(t, stdout)
				for name, want := range tt.want {
					if got[name] != want {
						t.Errorf("file by %s: %s: got %q, want %q", by, name, got[name], want)
					}
				}
			}
		})
	}
}

// The printed settings are the same when they are read again, except for the passwords.
func TestPrintedConfigIsOne(t *testing.T) {
	file := write(t, "source: mongodb://a.example/\ntarget: mongodb://b.example/\nlink: l\n")
	odd := filepath.Join(t.TempDir(), "# no: comment")
	must.Succeed(t, os.Mkdir(odd, 0o700))
	_, first, _ := invoke(t, nil, "run", "--print-config", "--config="+file, "--include=yes", "--include=7", "--include=010", "--start-at=1700000000,4", "--memory=1GiB",
		"--allow-existing", "--spool-dir=/s", "--max-bytes-per-second=20MiB", "--indexes=before", "--read-tags=a=b", "--source-host-map=a=b:1", "--source-host-map=c:2=d", "--delay=1h30m", "--spill-dir="+odd)
	code, second, stderr := invoke(t, nil, "run", "--print-config", "--config="+write(t, first))
	if code != cli.ExitOK {
		t.Fatal(stderr)
	}
	plain := func(lines map[string]string) map[string]string {
		for name, line := range lines {
			value, _, _ := strings.Cut(line, " # ")
			lines[name] = value
		}
		return lines
	}
	a, b := plain(printed(t, first)), plain(printed(t, second))
	for name := range a {
		if a[name] != b[name] {
			t.Errorf("%s: printed %q, and read back %q", name, a[name], b[name])
		}
	}
	if a["start-at"] != "1700000000,4" || !strings.Contains(first, "spill-dir: '"+odd+"'") {
		t.Errorf("got %s", first)
	}
}

// The default of --start-at depends on --allow-existing, and is printed as it holds:
// so that it can be read back.
func TestStartAt(t *testing.T) {
	for name, tt := range map[string]struct {
		args  []string
		want  string
		plain initialsync.Options
	}{
		"nothing said":   {nil, "copy", initialsync.Options{Wanted: true}},
		"said":           {[]string{"--start-at=copy", "--drop-existing"}, "copy", initialsync.Options{Wanted: true, DropExisting: true}},
		"existing":       {[]string{"--allow-existing"}, "now", initialsync.Options{}},
		"now":            {[]string{"--start-at=now"}, "now", initialsync.Options{}},
		"existing, at T": {[]string{"--allow-existing", "--start-at=1700000000"}, "1700000000", initialsync.Options{}},
	} {
		t.Run(name, func(t *testing.T) {
			args := append([]string{"run", "--print-config", "--config=" + write(t, where)}, tt.args...)
			code, stdout, stderr := invoke(t, nil, args...)
			if code != cli.ExitOK {
				t.Fatal(stderr)
			}
			if got, _, _ := strings.Cut(printed(t, stdout)["start-at"], " # "); got != tt.want && got != "\""+tt.want+"\"" {
				t.Errorf("got %q, want %q", got, tt.want)
			}
			code, again, stderr := invoke(t, nil, "run", "--print-config", "--config="+write(t, stdout))
			if code != cli.ExitOK {
				t.Errorf("read back: %s%s", again, stderr)
			}
			got := parsed(t, tt.args...).copying()
			if got.Wanted != tt.plain.Wanted || got.DropExisting != tt.plain.DropExisting {
				t.Errorf("got %+v", got)
			}
		})
	}
}

// parsed returns run's flags as a command line has them.
func parsed(t *testing.T, args ...string) *runFlags {
	t.Helper()
	var c commands
	parser, err := kong.New(&c, kong.ExplicitGroups(groups), cli.Numbers(), kong.Resolvers(newSettings(nil)), kong.Bind(newSettings(nil)))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := parser.Parse(append([]string{"run"}, args...)); err != nil {
		t.Fatal(err)
	}
	return &c.Run.runFlags
}

// Every setting of the copy gets to the pipeline.
func TestCopySettings(t *testing.T) {
	got := parsed(t, "--link=dr", "--clone-workers=5", "--index-workers=3", "--indexes=before", "--range-bytes=1GiB",
		"--spool-dir=/s", "--spool-bytes=2GiB", "--spool-free=3GiB", "--max-bytes-per-second=4MiB", "--max-ops-per-second=5", "--source-wait=6h").copying()
	want := initialsync.Options{
		Wanted: true, Workers: 5, IndexWorkers: 3, IndexesFirst: true, RangeBytes: 1 << 30,
		SpoolDir: "/s/dr", SpoolBytes: 2 << 30, SpoolFree: 3 << 30, BytesPerSecond: 4 << 20, OpsPerSecond: 5, SourceWait: 6 * time.Hour,
	}
	if got != want {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
	if got := parsed(t, "--link=dr", "--writers=1").copying(); got.Workers != 1 || got.IndexWorkers != 1 {
		t.Errorf("more workers than lanes: %+v", got)
	}
	t.Setenv("HOME", "/home/x")
	t.Setenv("XDG_CACHE_HOME", "")
	if got := parsed(t, "--link=dr").spoolDir(); !strings.HasPrefix(got, "/home/x/") || !strings.HasSuffix(got, "/replicator/spool/dr") {
		t.Errorf("the spool is in %q", got)
	}
	t.Setenv("HOME", "")
	if _, err := parsed(t, "--source=mongodb://a", "--target=mongodb://b", "--link=dr").check(); err == nil || !strings.Contains(err.Error(), "--spool-dir is missing") {
		t.Errorf("got %v", err)
	}
	// Nobody needs it where nothing is copied.
	if _, err := parsed(t, "--source=mongodb://a", "--target=mongodb://b", "--link=dr", "--start-at=now").check(); err != nil {
		t.Error(err)
	}
}

func TestPasswordsAreNotShown(t *testing.T) {
	secret := write(t, "sesame44\n")
	const uri = "mongodb://u:sesame42@127.0.0.1:1/?tlsCertificateKeyFilePassword=sesame43"
	tests := map[string]struct {
		environ []string
		args    []string
	}{
		"print-config":       {nil, []string{"run", "--print-config", "--link=l", "--source=" + uri, "--target=" + uri}},
		"by file":            {nil, []string{"run", "--print-config", "--link=l", "--source=mongodb://u@a", "--source-password-file=" + secret, "--target=" + uri}},
		"by environment":     {[]string{"REPLICATOR_SOURCE=" + uri}, []string{"run", "--print-config", "--link=l", "--target=" + uri}},
		"not encoded":        {nil, []string{"run", "--print-config", "--link=l", "--source=mongodb://u:p/sesame42@a.example", "--target=" + uri}},
		"no scheme":          {nil, []string{"run", "--print-config", "--link=l", "--source=u:sesame42@a.example", "--target=" + uri}},
		"an argument":        {nil, []string{"run", uri}},
		"an unknown flag":    {nil, []string{"run", "--sorce=" + uri}},
		"unknown option":     {nil, []string{"run", "--link=l", "--source=" + uri + "&nope=1", "--target=" + uri}},
		"oplog of nobody":    {nil, []string{"oplog", "--source=mongodb://u:sesame42@127.0.0.1:1/", "--selection-timeout=20ms"}},
		"a value that fails": {[]string{"REPLICATOR_DELAY=" + uri}, []string{"run"}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			_, stdout, stderr := invoke(t, tt.environ, tt.args...)
			if strings.Contains(stdout+stderr, "sesame") {
				t.Errorf("shown:\n%s\n%s", stdout, stderr)
			}
			if stdout+stderr == "" {
				t.Error("nothing was said")
			}
		})
	}
}

func TestWrongSettings(t *testing.T) {
	file := func(text string) []string { return []string{"--config=" + write(t, text)} }
	tests := []struct {
		name    string
		environ []string
		args    []string
		says    string
	}{
		{"typo in a flag", nil, []string{"--sorce=x"}, `did you mean one of "--source"`},
		{"nothing", nil, nil, "--source is missing"},
		{"no link", nil, []string{"--source=mongodb://a", "--target=mongodb://b"}, "--link is missing"},
		{"typo in the file", nil, file(where + "memry: 1GiB\n"), `line 4: there is no setting "memry"; did you mean "memory"?`},
		{"typo in the file, similar to two", nil, file(where + "sorce: x\n"), `did you mean "source"?`},
		{"other spelling", nil, file(where + "batchOps: 1\n"), `did you mean "batch-ops"?`},
		{"twice", nil, file(where + "link: m\n"), `line 4: "link" is set twice, first in line 3`},
		{"a file in a file", nil, file("config: x\n"), "cannot name another one"},
		{"no mapping", nil, file("- a\n"), "want lines of the form NAME: VALUE"},
		{"not YAML", nil, file("a: [\n"), "read the settings in "},
		{"no file", nil, []string{"--config=/nowhere/x.yaml"}, "read the settings in /nowhere/x.yaml: no such file"},
		{"a list for one value", nil, file(where + "writers: [1]\n"), "line 4: expected one value"},
		{"a mapping for a list", nil, file(where + "include: {a: b}\n"), "line 4: expected a list"},
		{"a list in a list", nil, file(where + "include: [[a]]\n"), "an element in line 4 is not a string"},
		{"a bad number, in the file", nil, file(where + "writers: many\n"), "line 4: \"many\" is not a whole number"},
		{"a second document", nil, file(where + "---\nexclude: [secret]\n"), "line 4: a second document starts here"},
		{"a second document, with nothing in it", nil, file(where + "---\n"), "a second document starts here"},
		{"a second document, broken", nil, file(where + "---\na: [\n"), "read the settings in "},
		{"a second document, in the environment", []string{"REPLICATOR_INCLUDE=[a]\n---\n[b]"}, nil, "the list is not valid YAML"},
		{"octal, in the file", nil, file(where + "writers: 010\n"), "line 4: 010 is octal to some readers of YAML and decimal to others"},
		{"octal, in a size", nil, file(where + "memory: 010000000000\n"), "line 4: 010000000000 is octal"},
		{"octal, in a list", nil, file(where + "include: [a, 010]\n"), "line 4: 010 is octal"},
		{"octal, in quotes", nil, file(where + "writers: '010'\n"), `line 4: "010" is not a decimal number`},
		{"octal", nil, []string{"--writers=010"}, `--writers: "010" is not a decimal number: write it without the leading zero`},
		{"octal, in the environment", []string{"REPLICATOR_WRITERS=010"}, nil, `environment REPLICATOR_WRITERS: "010" is not a decimal number`},
		{"hexadecimal", nil, []string{"--writers=0x10"}, `"0x10" is not a decimal number`},
		{"no number", nil, []string{"--writers=1e3"}, `"1e3" is not a whole number`},
		{"no such choice, in the file", nil, file(where + "transactions: maybe\n"), `line 4: "maybe" is not one of atomic, relaxed`},
		{"no such choice, in the environment", []string{"REPLICATOR_LOG_LEVEL=loud"}, nil, "environment REPLICATOR_LOG_LEVEL"},
		{"no such choice", nil, []string{"--log-level=loud"}, "--log-level must be one of"},
		{"no size", nil, []string{"--memory=much"}, "write a number of bytes"},
		{"no time", nil, []string{"--start-at=yesterday"}, "write now, unix seconds"},
		{"too few writers", nil, []string{"--writers=0"}, "--writers: 0 is not from 1 to 256"},
		{"too little memory", nil, []string{"--memory=223MiB"}, "--memory: 223MiB is less than 224MiB"},
		{"too little memory for the runtime", []string{"GOMEMLIMIT=190MiB"}, file(where), "GOMEMLIMIT leaves the process 218MiB of memory, and it needs 224MiB: raise it"},
		{"not what the runtime understands", []string{"GOMEMLIMIT=much"}, file(where), `GOMEMLIMIT: "much" is not a size`},
		{"negative delay", nil, []string{"--delay=-1s"}, "--delay: -1s is less than 0s"},
		{"the future", nil, []string{"--start-at=2100-01-01T00:00:00Z"}, "is in the future"},
		{"copied until, from when", nil, []string{"--copied-until=1700000000"}, "--copied-until needs --start-at"},
		{"copied until, and empty", nil, []string{"--start-at=1600000000", "--copied-until=1700000000"}, "--copied-until needs --allow-existing"},
		{"copied backwards", nil, []string{"--allow-existing", "--start-at=1700000000", "--copied-until=1600000000"}, "--copied-until is before --start-at"},
		{"copied until now", nil, []string{"--copied-until=now"}, "give the time when the copy was finished"},
		{"bad pattern", nil, []string{"--include=/shop"}, "--include"},
		{"bad address", nil, []string{"--listen=here"}, `--listen: "here" is not of the form HOST:PORT`},
		{"bad port", nil, []string{"--listen=:99999"}, "is not of the form HOST:PORT"},
		{"whose member", nil, []string{"--feedback=member"}, "--feedback=member needs --feedback-member"},
		{"member for nothing", nil, []string{"--feedback=none", "--feedback-member=3"}, "--feedback-member is given"},
		{"a list in one pattern", nil, []string{"--exclude=shop,crm", "--include=/a,b/"}, `--exclude: "shop,crm" is a single pattern: repeat --exclude for each`},
		{"link's name", nil, []string{"--link=a/b"}, `--link: "a/b": a name has letters`},
		{"no folder", nil, []string{"--spill-dir=/nowhere/x"}, "--spill-dir: stat /nowhere/x: no such file"},
		{"copy and keep", nil, []string{"--start-at=copy", "--allow-existing"}, "--start-at=copy and --allow-existing: give --drop-existing"},
		{"drop and keep", nil, []string{"--drop-existing", "--allow-existing"}, "the target's data are either dropped or kept"},
		{"drop and not copy", nil, []string{"--drop-existing", "--start-at=now"}, "--drop-existing is for a link that starts with a copy"},
		{"start with nothing", nil, []string{"--start-at="}, "--start-at is empty: give copy, now, or a point in time"},
		{"no start", nil, []string{"--start-at=later"}, "or copy, to copy the source's data first"},
		{"copied until a copy", nil, []string{"--copied-until=copy"}, "is not a point in time"},
		{"no folder for the spool", []string{"REPLICATOR_LINK=.."}, nil, `--link: ".." cannot be the name of a directory of the spool`},
		{"clone workers", nil, []string{"--clone-workers=0"}, "--clone-workers: 0 is not from 1 to 256"},
		{"index workers", nil, []string{"--index-workers=257"}, "--index-workers: 257 is not from 1 to 256"},
		{"ranges", nil, []string{"--range-bytes=1KiB"}, "--range-bytes: 1KiB is not from 1MiB"},
		{"spool", nil, []string{"--spool-bytes=1MiB"}, "--spool-bytes: 1MiB is not from 256MiB"},
		{"disk", nil, []string{"--spool-free=0"}, "--spool-free: 0 is not from 16MiB"},
		{"operations", nil, []string{"--max-ops-per-second=-1"}, "--max-ops-per-second: -1 is not from 0"},
		{"a forgotten unit", nil, []string{"--max-bytes-per-second=20"}, "add a unit, as in 20MiB"},
		{"a forgotten unit of the verification", nil, []string{"--verify=continuous", "--verify-budget=20/s"}, "--verify-budget: 20 bytes is less than 1KiB: add a unit, as in 20MiB"},
		{"bytes", nil, []string{"--max-bytes-per-second=fast"}, "write a number of bytes"},
		{"wait", nil, []string{"--source-wait=1ms"}, "--source-wait: 1ms is less than 1s"},
		{"indexes", nil, []string{"--indexes=never"}, "--indexes must be one of"},
		{"progress", nil, []string{"--progress=bar"}, "--progress must be one of"},
		{"no map of hosts", nil, []string{"--source-host-map=db1:27017"}, `"db1:27017" is not of the form NAME=ADDRESS`},
		{"two hosts in one", nil, []string{"--target-host-map=a=b,c=d"}, `"a=b,c=d" is not of the form NAME=ADDRESS`},
		{"a member, and another", nil, []string{"--source=mongodb://a/?directConnection=true", "--sync-source=b:27017"}, "--sync-source is given, and --source has directConnection=true"},
		{"password file missing", nil, []string{"--source=mongodb://u@a", "--source-password-file=/nowhere/p"}, "/nowhere/p"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			code, stdout, stderr := invoke(t, tt.environ, append([]string{"run"}, tt.args...)...)
			if code != cli.ExitUsage || !strings.Contains(stderr, tt.says) || stdout != "" {
				t.Errorf("code %d, %q; want %q; printed %q", code, stderr, tt.says, stdout)
			}
			if !strings.Contains(stderr, "Run replicator run --help") {
				t.Errorf("no hint in %q", stderr)
			}
		})
	}
}

func TestDistance(t *testing.T) {
	for _, tt := range []struct {
		a, b string
		want int
	}{{"", "", 0}, {"abc", "abc", 0}, {"abc", "abd", 1}, {"abc", "ac", 1}, {"ac", "abc", 1}, {"kitten", "sitting", 3}, {"", "abc", 3}} {
		if got := distance(tt.a, tt.b); got != tt.want {
			t.Errorf("%q to %q: got %d, want %d", tt.a, tt.b, got, tt.want)
		}
	}
}

// A file may begin with the line that YAML puts before a document, and a text of
// digits is one in quotes.
func TestOneDocument(t *testing.T) {
	file := write(t, "---\nsource: mongodb://a\ntarget: mongodb://b\nlink: '010'\nexclude: ['007']\n")
	code, stdout, stderr := invoke(t, nil, "run", "--print-config", "--config="+file)
	if code != cli.ExitOK {
		t.Fatal(stderr)
	}
	if got := printed(t, stdout); !strings.HasPrefix(got["link"], `"010"`) || !strings.HasPrefix(got["exclude"], `["007"]`) {
		t.Errorf("got link %s, exclude %s", got["link"], got["exclude"])
	}
	if code, _, stderr := invoke(t, nil, "run", "--config="+write(t, "")); code != cli.ExitUsage || !strings.Contains(stderr, "--source is missing") {
		t.Errorf("an empty file: code %d, %s", code, stderr)
	}
}
