package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/bench/result"
	"github.com/oplogrep/replicator/internal/cli"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/driver"
	"github.com/oplogrep/replicator/internal/testkit/client"
	"github.com/oplogrep/replicator/mongosim"
)

// TestBenchRefuses: what cannot be measured as it was asked for ends before anything is
// measured, with a code and a hint.
func TestBenchRefuses(t *testing.T) {
	t.Setenv(asProgram, "1") // for ends in processes of their own
	dir := t.TempDir()
	file := func(name, text string) string {
		name = filepath.Join(dir, name)
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return name
	}
	noJSON, other, future := file("cut.json", `{"x":`), file("other.json", `{"nobody":1}`), file("future.json", `{"format":2}`)
	recording := filepath.Join(recordings, "types", "oplog.bson")
	const nobody = "mongodb://root:sesame42@127.0.0.1:1/?serverSelectionTimeoutMS=200"
	for _, tt := range []struct {
		args string
		code int
		says string
	}{
		{"bench", cli.ExitUsage, "expected one of"},
		{"bench aply", cli.ExitUsage, `did you mean "apply"`},
		{"bench apply --ops=-1", cli.ExitUsage, "--ops=-1: want 1 or more"},
		{"bench apply --ops=0", cli.ExitUsage, "--ops=0"},
		{"bench apply --documents=-1", cli.ExitUsage, "--documents=-1"},
		{"bench apply --namespaces=20000", cli.ExitUsage, "20000 is not in 1 to 10000"},
		{"bench apply --preset=updates --documents=5", cli.ExitUsage, "5 are too few"},
		{"bench apply --rounds=0", cli.ExitUsage, "--rounds=0"},
		{"bench apply --writers=0", cli.ExitUsage, "--writers=0"},
		{"bench apply --writers=1000", cli.ExitUsage, "1000 writers: not between"},
		{"bench apply --flush-docs=-1", cli.ExitUsage, "-1 documents of a flush"},
		{"bench apply --preset=none", cli.ExitUsage, "there are small-inserts, updates"},
		{"bench apply --preset=hot --oplog=" + recording, cli.ExitUsage, "give one of them"},
		{"bench apply --oplog=" + recording + " --size=100", cli.ExitUsage, "of a recording nothing can be chosen"},
		{"bench apply --target=nowhere", cli.ExitUsage, "does not begin with mongodb://"},
		{"bench apply --target=discard", cli.ExitUsage, "does not begin with mongodb://"},
		{"bench apply --mongod=/nobody", cli.ExitUsage, "--mongod (MONGOD)"},
		{"bench ceiling --mongod=/nobody", cli.ExitUsage, "--mongod (MONGOD)"},
		{"bench mirror --for=1ms --mongod=/nobody", cli.ExitUsage, "--mongod (MONGOD)"},
		{"bench catch-up --mongod=/nobody", cli.ExitUsage, "--mongod (MONGOD)"},
		{"bench clone --mongod=/nobody", cli.ExitUsage, "--mongod (MONGOD)"},
		{"bench goals --mongod=/nobody", cli.ExitUsage, "--mongod (MONGOD)"},
		{"bench apply --json=/nobody/x.json", cli.ExitUsage, "write to /nobody/x.json"},
		{"bench apply --json=" + dir, cli.ExitUsage, "it is a folder"},
		{"bench apply --benchstat=/nobody/x", cli.ExitUsage, "write to /nobody/x"},
		{"bench apply --profile=/nobody/x", cli.ExitUsage, "write to /nobody/x"},
		{"bench ceiling --ceiling-batch=0", cli.ExitUsage, "--ceiling-batch=0"},
		{"bench ceiling --oplog=" + recording + " --in-one-process", cli.ExitUsage, "has commands"},
		{"bench mirror --rate=0", cli.ExitUsage, "--rate=0"},
		{"bench mirror --for=-1s", cli.ExitUsage, "--for=-1s"},
		{"bench mirror --target=null", cli.ExitUsage, "both ends have to be sets"},
		{"bench catch-up --source=memory", cli.ExitUsage, "both ends have to be sets"},
		{"bench catch-up --source=" + nobody + " --target=" + nobody, cli.ExitUsage, "the same set"},
		{"bench catch-up --secondary --ops=100 --source=" + nobody, cli.ExitConnect, "no primary"},
		{"bench clone --workers=0", cli.ExitUsage, "--workers=0"},
		{"bench clone --documents=0 --in-one-process", cli.ExitUsage, "no documents"},
		{"bench pipeline --buffer=1", cli.ExitUsage, "a buffer of 1 bytes"},
		{"bench pipeline --source=" + nobody, cli.ExitUsage, "must be one of"},
		{"bench goals --scale=0", cli.ExitUsage, "--scale=0"},
		{"bench goals --only=no", cli.ExitUsage, "the parts are pipeline, apply"},
		{"bench presets no", cli.ExitUsage, "there are small-inserts"},
		{"bench apply --workload=" + dir + "/none.json", cli.ExitBadInput, "no such file"},
		{"bench apply --workload=" + noJSON, cli.ExitBadInput, "unexpected EOF"},
		{"bench apply --workload=" + other, cli.ExitBadInput, `unknown field "nobody"`},
		{"bench apply --oplog=" + dir + "/none.bson", cli.ExitBadInput, "no such file"},
		{"bench apply --oplog=" + other, cli.ExitBadInput, "at byte 0"},
		{"bench apply --compare=" + dir + "/none.json", cli.ExitBadInput, "no such file"},
		{"bench compare " + noJSON + " " + noJSON, cli.ExitBadInput, "unexpected end"},
		{"bench compare " + future + " " + future, cli.ExitBadInput, "this program knows 1 only"},
		{"bench report " + other, cli.ExitBadInput, "no format given"},
		{"bench apply --target=" + nobody, cli.ExitConnect, "no primary"},
		{"bench catch-up --ops=100 --source=" + nobody, cli.ExitConnect, "no primary"},
	} {
		t.Run(tt.args, func(t *testing.T) {
			args := strings.Fields(tt.args)
			code, stdout, stderr := invoke(t, args...)
			if code != tt.code || !strings.Contains(stderr, tt.says) || stdout != "" {
				t.Errorf("code %d, want %d and %q, got\n%s%s", code, tt.code, tt.says, stdout, stderr)
			}
			if lines := strings.Split(strings.TrimSpace(stderr), "\n"); len(lines) < 2 || strings.Contains(stderr, "report it") {
				t.Errorf("no hint: %s", stderr)
			}
			if strings.Contains(stderr, "sesame42") {
				t.Errorf("it shows a password: %s", stderr)
			}
		})
	}
	if _, err := os.Stat("bench.json"); err == nil {
		t.Error("there are results")
	}
}

// TestBenchResults measures a little, and does with the results what one does.
func TestBenchResults(t *testing.T) {
	t.Setenv(asProgram, "1") // for ends in processes of their own
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	must := func(args ...string) string {
		t.Helper()
		code, stdout, stderr := invoke(t, args...)
		if code != cli.ExitOK {
			t.Fatalf("%q: code %d\n%s%s", args, code, stdout, stderr)
		}
		return stdout
	}
	preset := must("bench", "presets", "updates")
	if err := os.WriteFile(at("updates.json"), []byte(preset), 0o600); err != nil {
		t.Fatal(err)
	}
	if list := must("bench", "presets"); !strings.Contains(list, "large-docs") || strings.Contains(list, " 0 bytes") {
		t.Errorf("presets:\n%s", list)
	}
	table := must("bench", "pipeline", "--ops=500", "--rounds=2", "--json="+at("pipeline.json"))
	if !strings.Contains(table, "small-inserts/memory/discard/ops=500") {
		t.Errorf("the table:\n%s", table)
	}
	apply := []string{
		"bench", "apply", "--workload=" + at("updates.json"), "--ops=400", "--documents=400", "--ceiling", "--target=null",
		"--in-one-process", "--rounds=1", "--no-progress",
	}
	stat := must(append(apply, "--benchstat=-", "--json="+at("apply.json"))...)
	if !strings.Contains(stat, "BenchmarkApply/") && !strings.Contains(stat, "ops/s") {
		t.Errorf("for benchstat:\n%s", stat)
	}
	report, err := result.Read(at("apply.json"))
	if err != nil {
		t.Fatal(err)
	}
	if len(report.Runs) != 2 || report.Runs[0].Ops != 400 || report.Runs[1].Kind != "ceiling" || report.Seed != 1 {
		t.Errorf("the results: %+v", report)
	}
	if report.Command[0] != "replicator-lab" || !slices.Equal(report.Command[1:3], apply[:2]) {
		t.Errorf("the command: %q", report.Command)
	}

	if same := must("bench", "compare", at("pipeline.json"), at("pipeline.json")); !strings.Contains(same, "nothing differs") {
		t.Errorf("compared with itself:\n%s", same)
	}
	better, err := result.Read(at("pipeline.json"))
	if err != nil {
		t.Fatal(err)
	}
	better.Runs[0].AllocsPerOp = 0
	if err := better.Write(at("better.json")); err != nil {
		t.Fatal(err)
	}
	again := []string{"bench", "pipeline", "--ops=500", "--rounds=2", "--json=" + at("better.json"), "--compare=" + at("better.json")}
	for _, args := range [][]string{{"bench", "compare", at("better.json"), at("pipeline.json")}, again} {
		code, stdout, stderr := invoke(t, args...)
		if code != cli.ExitFailed || !strings.Contains(stdout, "WORSE") || !strings.Contains(stderr, "1 figure") {
			t.Errorf("%q: code %d\n%s%s", args, code, stdout, stderr)
		}
	}
	for name := range strings.Lines(must("bench", "report", at("pipeline.json"), at("apply.json"), "--out="+at("page"))) {
		if info, err := os.Stat(strings.TrimSpace(name)); err != nil || info.Size() == 0 {
			t.Errorf("the report: %v, %v", info, err)
		}
	}
}

// TestBenchOfASet: databases of a set that a connection string names stay unless they
// may go, nothing is left there, and its password is shown nowhere.
func TestBenchOfASet(t *testing.T) {
	t.Setenv(asProgram, "1") // for ends in processes of their own
	set := mongosim.StartTest(t, mongosim.Options{Members: 1, Users: []mongosim.User{
		{Name: "u", Password: "sesame42", Roles: []mongosim.Role{{Name: "root", DB: "admin"}}},
	}})
	uri := set.URIFor("u")
	if !strings.Contains(uri, "sesame42") {
		t.Fatalf("no password in %s", uri)
	}
	client := client.Open(t, driver.Config{URI: uri, AppName: mongosim.Stage})
	names := func() []string {
		t.Helper()
		reply := ask(t, client, "admin", bson.D{{Key: "listDatabases", Value: 1}, {Key: "nameOnly", Value: true}})
		var list []string
		values, err := reply.Lookup("databases").Array().Values()
		if err != nil {
			t.Fatal(err)
		}
		for _, v := range values {
			list = append(list, v.Document().Lookup("name").StringValue())
		}
		return list
	}
	before := names()

	file := filepath.Join(t.TempDir(), "bench.json")
	args := []string{"bench", "apply", "--target", uri, "--ops=50", "--rounds=1", "--json=" + file}
	code, stdout, stderr := invoke(t, args...)
	text, err := os.ReadFile(file)
	if code != cli.ExitOK || err != nil {
		t.Fatalf("code %d, %v\n%s%s", code, err, stdout, stderr)
	}
	if all := stdout + stderr + string(text); strings.Contains(all, "sesame42") || !strings.Contains(all, "u:***@") {
		t.Errorf("a password is shown, or the whole command is not:\n%s", all)
	}
	if left := names(); !slices.Equal(left, before) {
		t.Errorf("databases are %v, were %v", left, before)
	}

	ask(t, client, "bench", bson.D{{Key: "create", Value: "mine"}})
	code, stdout, stderr = invoke(t, args...)
	if code != cli.ExitCheck || stdout != "" || !strings.Contains(stderr, "exist there: bench") || !strings.Contains(stderr, "--overwrite") {
		t.Errorf("code %d\n%s%s", code, stdout, stderr)
	}
	if !slices.Contains(names(), "bench") {
		t.Error("somebody else's database is gone")
	}
	if code, stdout, stderr = invoke(t, append(args, "--overwrite")...); code != cli.ExitOK {
		t.Errorf("code %d\n%s%s", code, stdout, stderr)
	}
	if left := names(); !slices.Equal(left, before) {
		t.Errorf("databases are %v, were %v", left, before)
	}
}

func ask(t *testing.T, set *driver.Set, db string, cmd bson.D) bson.Raw {
	t.Helper()
	body, err := bson.Marshal(cmd)
	if err != nil {
		t.Fatal(err)
	}
	reply, err := set.Call(t.Context(), mongo.Command{DB: db, Body: body})
	if err != nil {
		t.Fatal(err)
	}
	return reply
}
