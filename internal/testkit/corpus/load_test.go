package corpus

import (
	"encoding/binary"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/testkit/memstore"
	"github.com/oplogrep/replicator/internal/testkit/race"
	"github.com/oplogrep/replicator/oplog"
)

// copyOf copies a recording to where it may be damaged.
func copyOf(t *testing.T, name string) Scenario {
	t.Helper()
	dir := filepath.Join(t.TempDir(), name)
	if err := os.CopyFS(dir, os.DirFS(filepath.Join(recordings, name))); err != nil {
		t.Fatal(err)
	}
	all, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	return all[0]
}

func readFile(t *testing.T, name string) []byte {
	t.Helper()
	data, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func writeFile(t *testing.T, name string, data []byte) {
	t.Helper()
	if err := os.WriteFile(name, data, 0o600); err != nil {
		t.Fatal(err)
	}
}

// split takes concatenated documents apart.
func split(t *testing.T, data []byte) [][]byte {
	t.Helper()
	var docs [][]byte
	for len(data) > 0 {
		n := binary.LittleEndian.Uint32(data)
		docs = append(docs, data[:n])
		data = data[n:]
	}
	return docs
}

func join(docs ...[]byte) []byte {
	var all []byte
	for _, doc := range docs {
		all = append(all, doc...)
	}
	return all
}

// readLog reads all of a log.
func readLog(s *Scenario) error {
	for _, err := range s.Oplog() {
		if err != nil {
			return err
		}
	}
	return nil
}

func wantFileError(t *testing.T, err, want error, file string) {
	t.Helper()
	switch f := fileErrorOf(t, err); {
	case !errors.Is(err, want):
		t.Errorf("got %v, want %v", err, want)
	case filepath.Base(f.File) != file:
		t.Errorf("got %v, want the file %s", err, file)
	}
}

func fileErrorOf(t *testing.T, err error) *FileError {
	t.Helper()
	f, ok := errors.AsType[*FileError](err)
	if !ok {
		t.Fatalf("got %v, want a FileError", err)
	}
	return f
}

func TestDamagedLog(t *testing.T) {
	s := copyOf(t, "types")
	file := s.path("oplog.bson")
	whole := readFile(t, file)
	docs := split(t, whole)
	third := int64(len(docs[0]) + len(docs[1]))
	var stamps []bson.Timestamp
	for e, err := range s.Oplog() {
		if err != nil {
			t.Fatal(err)
		}
		stamps = append(stamps, e.OpTime.TS)
	}
	// The entry in the middle with something else in it.
	with := func(change func(d *bson.D)) []byte {
		var d bson.D
		if err := bson.Unmarshal(docs[2], &d); err != nil {
			t.Fatal(err)
		}
		change(&d)
		changed, err := bson.Marshal(d)
		if err != nil {
			t.Fatal(err)
		}
		return join(docs[0], docs[1], changed, join(docs[3:]...))
	}
	flip := func(at int) []byte {
		flipped := append([]byte(nil), whole...)
		flipped[int(third)+at] ^= 0x80
		return flipped
	}
	tests := []struct {
		name   string
		data   []byte
		want   error
		offset int64
		after  int // the entry before the fault
	}{
		{"nothing", nil, ErrMismatch, 0, 0},
		{"an entry missing at the end", join(docs[:8]...), ErrMismatch, int64(len(whole) - len(docs[8])), 8},
		{"an entry missing in the middle", join(docs[0], docs[1], join(docs[3:]...)), ErrMismatch, int64(len(whole) - len(docs[2])), 9},
		{"one entry twice", join(docs[0], docs[1], docs[1], join(docs[2:]...)), ErrOutOfOrder, third, 2},
		{"two entries exchanged", join(docs[0], docs[1], docs[3], docs[2], join(docs[4:]...)), ErrOutOfOrder, third + int64(len(docs[3])), 4},
		{"a term that goes back", with(func(d *bson.D) { set(d, "t", int64(0)) }), ErrOutOfOrder, third, 2},
		{"an entry before the part", with(func(d *bson.D) { set(d, "ts", bson.Timestamp{T: 1}) }), ErrOutOfOrder, third, 2},
		{"the last one is another", join(join(docs[:8]...), later(t, docs[8])), ErrMismatch, int64(len(whole)), 0}, // after that one
		{"cut off in a document", whole[:third+100], ErrCorrupt, third, 2},
		{"cut off in a length", whole[:third+3], ErrCorrupt, third, 2},
		{"a length too large", flip(2), ErrCorrupt, third, 2},
		{"a negative length", flip(3), ErrCorrupt, third, 2},
		{"a type that is none", flip(4), ErrCorrupt, third + 10, 2}, // where the value would be,
		{"zeros at the end", append(append([]byte(nil), whole...), 0, 0, 0, 0), ErrCorrupt, int64(len(whole)), 9},
		{"an unknown operation", with(func(d *bson.D) { set(d, "op", "q") }), oplog.ErrUnknownOp, third, 2},
		{"another version", with(func(d *bson.D) { set(d, "v", int64(3)) }), oplog.ErrVersion, third, 2},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			writeFile(t, file, tt.data)
			err := readLog(&s)
			wantFileError(t, err, tt.want, "oplog.bson")
			f := fileErrorOf(t, err)
			if f.Offset != tt.offset {
				t.Errorf("got byte %d, want %d: %v", f.Offset, tt.offset, err)
			}
			if got := slices.Index(stamps, f.After.TS) + 1; got != tt.after {
				t.Errorf("after entry %s, the entry %d, want %d: %v", f.After, got, tt.after, err)
			}
		})
	}
	// The first entry is not after where the part begins.
	writeFile(t, file, whole)
	s.Meta.first = s.Meta.last
	err := readLog(&s)
	wantFileError(t, err, ErrMismatch, "oplog.bson")
	if f := fileErrorOf(t, err); f.OpTime.IsNull() || f.Offset != 0 {
		t.Errorf("got %v, want the first entry", err)
	}
}

func set(d *bson.D, name string, v any) {
	for i := range *d {
		if (*d)[i].Key == name {
			(*d)[i].Value = v
		}
	}
}

// later returns an entry with a later timestamp.
func later(t *testing.T, entry []byte) []byte {
	t.Helper()
	var d bson.D
	if err := bson.Unmarshal(entry, &d); err != nil {
		t.Fatal(err)
	}
	set(&d, "ts", bson.Timestamp{T: 4e9})
	raw, err := bson.Marshal(d)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

// TestAnyDamage cuts and flips at many places: whatever it is, there is no panic
// and every error names the file.
func TestAnyDamage(t *testing.T) {
	s := copyOf(t, "types")
	file := s.path("oplog.bson")
	whole := readFile(t, file)
	every := 29
	if race.Enabled {
		every = 599
	}
	for at := 0; at < len(whole); at += every {
		writeFile(t, file, whole[:at])
		err := readLog(&s)
		if _, ok := errors.AsType[*FileError](err); !ok {
			t.Fatalf("cut off at byte %d: got %v, want a FileError", at, err)
		}
		flipped := append([]byte(nil), whole...)
		flipped[at] ^= 1 << (at % 8)
		writeFile(t, file, flipped)
		if r := Verify(t.Context(), &s, Options{}); r.Err != nil {
			if _, ok := errors.AsType[*FileError](r.Err); !ok {
				t.Fatalf("flipped at byte %d: got %v, want a FileError", at, r.Err)
			}
		}
	}
}

func TestDamagedData(t *testing.T) {
	const catalog = `{"ns": "d.c", "type": "collection", "options": {}, "indexes": []}`
	empty, noID := []byte{5, 0, 0, 0, 0}, []byte("\x08\x00\x00\x00\x0aa\x00\x00")
	tests := []struct {
		name  string
		files map[string][]byte
		want  error
		file  string
	}{
		{"no catalog", nil, fs.ErrNotExist, "catalog.json"},
		{"catalog that is no JSON", map[string][]byte{"catalog.json": []byte("[{]")}, ErrCorrupt, "catalog.json"},
		{"catalog that is no array", map[string][]byte{"catalog.json": []byte("{}")}, ErrCorrupt, "catalog.json"},
		{"catalog that is cut off", map[string][]byte{"catalog.json": []byte("[" + catalog), "d.c.bson": nil}, ErrCorrupt, "catalog.json"},
		{"catalog with more after it", map[string][]byte{"catalog.json": []byte("[] []")}, ErrCorrupt, "catalog.json"},
		{"collection without a file", map[string][]byte{"catalog.json": []byte("[" + catalog + "]")}, fs.ErrNotExist, "d.c.bson"},
		{"collection twice", map[string][]byte{"catalog.json": []byte("[" + catalog + "," + catalog + "]")}, ErrCorrupt, "catalog.json"},
		{"file without a collection", map[string][]byte{"catalog.json": []byte("[]"), "d.c.bson": nil}, ErrMismatch, "d.c.bson"},
		{"unknown field", map[string][]byte{"catalog.json": []byte(`[{"ns": "d.c", "novel": 1}]`)}, ErrCorrupt, "catalog.json"},
		{"unknown type", map[string][]byte{"catalog.json": []byte(`[{"ns": "d.c", "type": "x", "options": {}}]`)}, ErrCorrupt, "catalog.json"},
		{"no options", map[string][]byte{"catalog.json": []byte(`[{"ns": "d.c", "type": "view"}]`)}, ErrCorrupt, "catalog.json"},
		{"name that leads elsewhere", map[string][]byte{"catalog.json": []byte(`[{"ns": "d./../../c", "type": "view", "options": {}}]`)}, ErrCorrupt, "catalog.json"},
		{"uuid that is none", map[string][]byte{"catalog.json": []byte(`[{"ns": "d.c", "type": "view", "options": {}, "uuid": "x"}]`)}, ErrCorrupt, "catalog.json"},
		{"index that is none", map[string][]byte{"catalog.json": []byte(`[{"ns": "d.c", "type": "view", "options": {}, "indexes": [1]}]`)}, ErrCorrupt, "catalog.json"},
		{"document without _id", map[string][]byte{"catalog.json": []byte("[" + catalog + "]"), "d.c.bson": noID}, ErrCorrupt, "d.c.bson"},
		{"documents cut off", map[string][]byte{"catalog.json": []byte("[" + catalog + "]"), "d.c.bson": empty[:4]}, ErrCorrupt, "d.c.bson"},
	}
	for _, tt := range tests {
		for _, part := range []string{"before", "after"} {
			t.Run(tt.name+"/"+part, func(t *testing.T) {
				s := copyOf(t, "types")
				if err := os.RemoveAll(s.path(part)); err != nil {
					t.Fatal(err)
				}
				if err := os.Mkdir(s.path(part), 0o700); err != nil {
					t.Fatal(err)
				}
				for name, data := range tt.files {
					writeFile(t, filepath.Join(s.path(part), name), data)
				}
				wantFileError(t, Verify(t.Context(), &s, Options{}).Err, tt.want, tt.file)
			})
		}
	}
}

func TestMissingFiles(t *testing.T) {
	for _, name := range []string{"oplog.bson", "after"} {
		s := copyOf(t, "types")
		if err := os.RemoveAll(s.path(name)); err != nil {
			t.Fatal(err)
		}
		want := name
		if name == "after" {
			want = "catalog.json"
		}
		wantFileError(t, Verify(t.Context(), &s, Options{}).Err, fs.ErrNotExist, want)
	}
}

func TestOpen(t *testing.T) {
	const good = `{"entries": 1, "first": "1:1", "last": "1:2", "novel": 0}`
	tests := []struct {
		name string
		meta string
		want error
	}{
		{"no JSON", "{", ErrCorrupt},
		{"a number as text", strings.Replace(good, "1,", `"1",`, 1), ErrCorrupt},
		{"no entries", strings.Replace(good, "1,", "0,", 1), ErrCorrupt},
		{"no first", strings.Replace(good, "first", "fist", 1), ErrCorrupt},
		{"no last", strings.Replace(good, "1:2", "later", 1), ErrCorrupt},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			writeFile(t, filepath.Join(dir, metaFile), []byte(tt.meta))
			all, err := Open(dir)
			if err != nil || len(all) != 1 {
				t.Fatalf("got %v, %v", all, err)
			}
			wantFileError(t, all[0].Err, tt.want, metaFile)
			wantFileError(t, readLog(&all[0]), tt.want, metaFile)
			r := Verify(t.Context(), &all[0], Options{})
			wantFileError(t, r.Err, tt.want, metaFile)
		})
	}
	t.Run("no such folder", func(t *testing.T) {
		_, err := Open(filepath.Join(t.TempDir(), "none"))
		wantFileError(t, err, fs.ErrNotExist, "none")
	})
	t.Run("no recordings", func(t *testing.T) {
		dir := t.TempDir()
		_, err := Open(dir)
		wantFileError(t, err, fs.ErrNotExist, filepath.Base(dir))
	})
	t.Run("a folder that is no recording", func(t *testing.T) {
		dir := t.TempDir()
		if err := os.Mkdir(filepath.Join(dir, "x"), 0o700); err != nil {
			t.Fatal(err)
		}
		writeFile(t, filepath.Join(dir, "x", "notes"), nil)
		if err := os.Mkdir(filepath.Join(dir, "y"), 0o700); err != nil {
			t.Fatal(err)
		}
		writeFile(t, filepath.Join(dir, "y", metaFile), []byte(good))
		all, err := Open(dir)
		if err != nil || len(all) != 2 || all[0].Name != "x" || all[1].Err != nil {
			t.Fatalf("got %v, %v", all, err)
		}
		wantFileError(t, all[0].Err, fs.ErrNotExist, metaFile)
	})
	t.Run("named after its folder", func(t *testing.T) {
		dir := t.TempDir()
		if err := os.Mkdir(filepath.Join(dir, "x"), 0o700); err != nil {
			t.Fatal(err)
		}
		writeFile(t, filepath.Join(dir, "README.md"), nil)
		writeFile(t, filepath.Join(dir, "x", metaFile), []byte(good))
		all, err := Open(dir)
		if err != nil || len(all) != 1 || all[0].Name != "x" {
			t.Errorf("got %v, %v", all, err)
		}
	})
}

func TestCommands(t *testing.T) {
	all, err := Open(recordings)
	if err != nil {
		t.Fatal(err)
	}
	failed := 0
	for _, s := range all {
		switch s.Name {
		case "random", "fuzzy-clone": // large, and like the others
			continue
		case "id-moves", "live": // recorded without
			continue
		}
		n := 0
		for c, err := range s.Commands() {
			if err != nil {
				t.Fatal(err)
			}
			n++
			if c.Error != nil {
				failed++
			}
		}
		if n == 0 {
			t.Errorf("%s: no commands", s.Name)
		}
	}
	if failed == 0 {
		t.Error("no command failed, though the recordings have some that do")
	}
}

func TestDamagedCommands(t *testing.T) {
	good := `{"db": "d", "command": {"ping": 1}, "reply": {"ok": {"$numberDouble": "1.0"}}}` + "\n"
	for name, bad := range map[string]string{
		"no JSON":          "{",
		"no extended JSON": `{"db": "d", "command": {"x": {"$numberInt": "y"}}, "reply": {}}`,
		"no outcome":       `{"db": "d", "command": {}}`,
		"two outcomes":     `{"db": "d", "command": {}, "reply": {}, "error": {}}`,
		"unknown field":    `{"db": "d", "command": {}, "reply": {}, "novel": 1}`,
	} {
		s := copyOf(t, "types")
		writeFile(t, s.path("commands.jsonl"), []byte(good+bad))
		n := 0
		var err error
		for c, e := range s.Commands() {
			if err = e; e == nil {
				n++
				if c.DB != "d" || c.Offset != 0 {
					t.Errorf("%s: got %+v", name, c)
				}
			}
		}
		wantFileError(t, err, ErrCorrupt, "commands.jsonl")
		f := fileErrorOf(t, err)
		if n != 1 || f.Offset != int64(len(good)) {
			t.Errorf("%s: after %d commands, at byte %d: %v", name, n, f.Offset, err)
		}
	}
	s := copyOf(t, "types")
	if err := os.Remove(s.path("commands.jsonl")); err != nil {
		t.Fatal(err)
	}
	for _, err := range s.Commands() {
		wantFileError(t, err, fs.ErrNotExist, "commands.jsonl")
	}
	if r := Verify(t.Context(), &s, Options{}); !r.OK() {
		t.Errorf("without a transcript: %s", &r)
	}
}

func TestFileErrorText(t *testing.T) {
	err := &FileError{File: "x/oplog.bson", Offset: 12, OpTime: oplog.NewOpTime(3, 1, 2), After: oplog.NewOpTime(2, 1, 2), Err: ErrOutOfOrder}
	if got, want := err.Error(), "read x/oplog.bson at byte 12, entry 3:1 t2, after entry 2:1 t2: out of order"; got != want {
		t.Errorf("got  %q\nwant %q", got, want)
	}
}

func TestThroughJSON(t *testing.T) {
	raw, err := bson.Marshal(bson.D{{Key: "a", Value: bson.D{{Key: "$regex", Value: "x"}, {Key: "$options", Value: "i"}}}})
	if err != nil {
		t.Fatal(err)
	}
	once := throughJSON(raw)
	if twice := throughJSON(once); string(once) != string(twice) {
		t.Errorf("got %s, then %s", once, twice)
	}
	state := memstore.State{Collections: []memstore.CollectionState{{NS: "d.c", Options: raw, Indexes: []bson.Raw{raw}}}}
	same := catalogThroughJSON(state)
	if string(same.Collections[0].Options) != string(once) || string(state.Collections[0].Options) != string(raw) {
		t.Error("the catalog was not converted, or not left alone")
	}
}
