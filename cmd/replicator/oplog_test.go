package main

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/cli"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/internal/testkit/race"
	"github.com/oplogrep/replicator/mongosim"
)

func TestOplogFollows(t *testing.T) {
	set := mongosim.StartTest(t, mongosim.Options{Moods: oneRun, Members: 3})
	insert(t, set, "shop", "a", bson.D{{Key: "_id", Value: 1}})
	must.Succeed(t, set.AwaitSynced(t.Context()))
	code, stdout, stderr := invoke(t, nil, "oplog", "--source="+set.URI(), "--ns=shop.a", "--op=i", "--json")
	if code != cli.ExitOK || strings.Count(stdout, "\n") != 1 || !strings.Contains(stdout, `"_id":{"$numberInt":"1"}`) {
		t.Fatalf("code %d\n%s%s", code, stdout, stderr)
	}

	ctx, end := context.WithCancelCause(t.Context())
	out, w := io.Pipe()
	lines := bufio.NewScanner(out)
	var log logLines
	log.more = sync.NewCond(&log.mu)
	done := make(chan int, 1)
	var running sync.WaitGroup
	running.Go(func() {
		done <- execute(cli.Ends{Soft: ctx, Hard: context.WithoutCancel(ctx)}, []string{"oplog", "--follow", "--source=" + set.URI(), "--ns=shop.b", "--since=1"}, nil, w, &log)
		_ = w.Close()
	})
	// What a majority does not have, the next primary may not have either.
	put := func(id string) {
		t.Helper()
		tell(t, set, "shop", bson.D{{Key: "update", Value: "b"}, {Key: "updates", Value: bson.A{bson.D{
			{Key: "q", Value: bson.D{{Key: "_id", Value: id}}}, {Key: "u", Value: bson.D{{Key: "_id", Value: id}}}, {Key: "upsert", Value: true},
		}}}, majority})
	}
	put("before")
	see := func(want string) {
		t.Helper()
		for lines.Scan() {
			if strings.Contains(lines.Text(), want) {
				return
			}
		}
		t.Fatalf("%q did not come; %s", want, &log)
	}
	see(`{"create":"b"`)
	see(`i  shop.b  {"_id":"before"}`)
	must.Succeed(t, set.StepDown(t.Context()))
	put("after")
	see(`i  shop.b  {"_id":"after"}`)
	must.Succeed(t, must.Get(set.AwaitPrimary(t.Context()))(t).Kill())
	put("much later")
	see(`i  shop.b  {"_id":"much later"}`)
	end(nil)
	if lines.Scan() {
		t.Errorf("more came: %s", lines.Text())
	}
	if code := <-done; code != cli.ExitOK {
		t.Errorf("code %d, %s", code, &log)
	}
	running.Wait()
}

func TestOplogWithoutOne(t *testing.T) {
	set := mongosim.StartTest(t, mongosim.Options{Moods: oneRun, Users: []mongosim.User{{Name: "u", Password: "sesame42", Roles: []mongosim.Role{{Name: "readWrite", DB: "shop"}}}}})
	code, _, stderr := invoke(t, nil, "oplog", "--source="+set.URIFor("u"))
	if code != cli.ExitConnect || !strings.Contains(stderr, "docs/privileges.md") {
		t.Errorf("code %d, %s", code, stderr)
	}
}

func TestPatterns(t *testing.T) {
	for pattern, names := range map[string]struct{ in, out []string }{
		"shop":           {[]string{"shop.a", "shop.a.b", "shop"}, []string{"shops.a", "ashop.a"}},
		"shop.a":         {[]string{"shop.a"}, []string{"shop.ab", "shop.a.b", "shop"}},
		"shop.*":         {[]string{"shop.a", "shop.a.b"}, []string{"shop", "shops.a"}},
		"s*.l?g":         {[]string{"shop.log", "s.lag"}, []string{"shop.loog", "t.log", "s.x.log"}},
		"*.system.*":     {[]string{"a.system.views"}, []string{"a.b.system.views"}},
		"a+b":            {[]string{"a+b.c"}, []string{"aab.c"}},
		`/shop\.(a|b)/`:  {[]string{"shop.a", "shop.b"}, []string{"shop.ab", "xshop.a"}},
		`/(?i)SHOP\..*/`: {[]string{"shop.a"}, []string{"ship.a"}},
	} {
		re, err := parsePattern(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, ns := range names.in {
			if !re.MatchString(ns) {
				t.Errorf("%s does not match %s", pattern, ns)
			}
		}
		for _, ns := range names.out {
			if re.MatchString(ns) {
				t.Errorf("%s matches %s", pattern, ns)
			}
		}
	}
	for _, pattern := range []string{"", ".a", "a.", "/a", "//", "/(/", "/"} {
		if _, err := parsePattern(pattern); err == nil {
			t.Errorf("%q was read", pattern)
		}
	}
}

// Every entry of every recording can be printed both ways, one line of JSON each.
func TestOplogPrintsAll(t *testing.T) {
	files, err := filepath.Glob(filepath.Join(recordings, "*", "oplog.bson"))
	if err != nil || len(files) == 0 {
		t.Fatalf("%v, %d files", err, len(files))
	}
	largest := int64(4 << 20)
	if race.Enabled {
		largest = 1 << 20
	}
	for _, file := range files {
		if info, err := os.Stat(file); err != nil || info.Size() > largest {
			continue
		}
		code, people, stderr := invoke(t, nil, "oplog", file)
		if code != cli.ExitOK || strings.Contains(people, "\n?  ") {
			t.Errorf("%s: code %d, %s", file, code, stderr)
		}
		code, lines, stderr := invoke(t, nil, "oplog", "--json", file)
		if code != cli.ExitOK {
			t.Errorf("%s: code %d, %s", file, code, stderr)
		}
		entries := 0
		for line := range strings.Lines(lines) {
			entries++
			if !json.Valid([]byte(line)) {
				t.Fatalf("%s: entry %d is no JSON: %s", file, entries, line)
			}
		}
		outer := 0
		for line := range strings.Lines(people) {
			if !strings.HasPrefix(line, "    ") {
				outer++
			}
		}
		if entries == 0 || outer != entries {
			t.Errorf("%s: %d lines for %d entries", file, outer, entries)
		}
	}
}

func FuzzReadDocument(f *testing.F) {
	doc, err := bson.Marshal(bson.D{{Key: "a", Value: 1}})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(append(doc, doc...))
	f.Add([]byte{5, 0, 0, 0, 0, 1})
	f.Add(binary.LittleEndian.AppendUint32(nil, 1<<30))
	f.Fuzz(func(t *testing.T, data []byte) {
		in := bufio.NewReader(strings.NewReader(string(data)))
		read := 0
		for {
			doc, err := readDocument(in)
			if err != nil {
				if errors.Is(err, io.EOF) != (read == len(data)) {
					t.Errorf("%v after %d of %d bytes", err, read, len(data))
				}
				return
			}
			if err := doc.Validate(); err != nil {
				t.Error(err)
			}
			read += len(doc)
		}
	})
}
