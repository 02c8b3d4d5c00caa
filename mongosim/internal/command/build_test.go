package command

import (
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/mongosim/internal/storage"
)

const (
	hang    = `{configureFailPoint: "hangAfterStartingIndexBuild", mode: "alwaysOn", $db: "admin"}`
	proceed = `{configureFailPoint: "hangAfterStartingIndexBuild", mode: "off", $db: "admin"}`
	buildX  = `{createIndexes: "c", indexes: [{key: {x: 1}, name: "x"}], $db: "d"}`
	buildXY = `{createIndexes: "c", indexes: [{key: {x: 1}, name: "x"}, {key: {y: 1}, name: "y"}], $db: "d"}`
)

// builds returns the names of the commands in the oplog on builds, drops and renames.
func (m *member) builds(t *testing.T) (names []string) {
	t.Helper()
	err := m.store.Read(func(r *storage.Reader) error {
		for e := range r.Oplog().From(bson.Timestamp{}) {
			o, _ := e.Raw.Lookup("o").DocumentOK()
			elems, _ := o.Elements()
			if len(elems) > 0 && (strings.Contains(elems[0].Key(), "Index") || elems[0].Key() == "drop") {
				names = append(names, elems[0].Key())
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return names
}

// Writes go on during a build, and other commands on its collection meet it as on a server.
func TestHangingIndexBuild(t *testing.T) {
	for name, c := range map[string]struct {
		version, build, during string
		// code is the answer to the command during the build, built that to createIndexes.
		code, built servererr.Code
		log         string
	}{
		"insert":                   {"5.0", buildX, `{insert: "c", documents: [{_id: 2}], $db: "d"}`, 0, 0, "startIndexBuild commitIndexBuild"},
		"drop index":               {"5.0", buildX, `{dropIndexes: "c", index: "x", $db: "d"}`, 0, servererr.IndexBuildAborted, "startIndexBuild abortIndexBuild"},
		"drop one of two":          {"5.0", buildXY, `{dropIndexes: "c", index: "x", $db: "d"}`, servererr.BackgroundOperationInProgressForNamespace, 0, "startIndexBuild commitIndexBuild"},
		"drop one of two, later":   {"6.0", buildXY, `{dropIndexes: "c", index: "x", $db: "d"}`, servererr.IndexNotFound, 0, "startIndexBuild commitIndexBuild"},
		"drop both":                {"5.0", buildXY, `{dropIndexes: "c", index: ["y", "x"], $db: "d"}`, 0, servererr.IndexBuildAborted, "startIndexBuild abortIndexBuild"},
		"drop all":                 {"5.0", buildXY, `{dropIndexes: "c", index: "*", $db: "d"}`, 0, servererr.IndexBuildAborted, "startIndexBuild abortIndexBuild dropIndexes"},
		"drop another":             {"5.0", buildX, `{dropIndexes: "c", index: "ready", $db: "d"}`, servererr.BackgroundOperationInProgressForNamespace, 0, "startIndexBuild commitIndexBuild"},
		"drop another, later":      {"6.0", buildX, `{dropIndexes: "c", index: "ready", $db: "d"}`, 0, 0, "startIndexBuild dropIndexes commitIndexBuild"},
		"drop the collection":      {"5.0", buildX, `{drop: "c", $db: "d"}`, 0, servererr.IndexBuildAborted, "startIndexBuild abortIndexBuild drop"},
		"drop the database":        {"5.0", buildX, `{dropDatabase: 1, $db: "d"}`, 0, servererr.IndexBuildAborted, "startIndexBuild abortIndexBuild drop"},
		"rename":                   {"5.0", buildX, `{renameCollection: "d.c", to: "d.e", $db: "admin"}`, servererr.BackgroundOperationInProgressForNamespace, 0, "startIndexBuild commitIndexBuild"},
		"collMod":                  {"5.0", buildX, `{collMod: "c", validator: {x: 1}, $db: "d"}`, servererr.BackgroundOperationInProgressForNamespace, 0, "startIndexBuild commitIndexBuild"},
		"index of another name":    {"5.0", buildX, `{createIndexes: "c", indexes: [{key: {x: 1}, name: "z"}], $db: "d"}`, servererr.IndexOptionsConflict, 0, "startIndexBuild commitIndexBuild"},
		"nothing":                  {"5.0", buildX, `{ping: 1, $db: "d"}`, 0, 0, "startIndexBuild commitIndexBuild"},
		"document that it refuses": {"5.0", `{createIndexes: "c", indexes: [{key: {x: 1, y: 1}, name: "x"}], $db: "d"}`, `{insert: "c", documents: [{_id: 2, x: [1], y: [1]}], $db: "d"}`, 0, servererr.CannotIndexParallelArrays, "startIndexBuild abortIndexBuild"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := newMember(t, c.version)
				m.run(t, `{insert: "c", documents: [{_id: 1}], $db: "d"}`)
				m.run(t, `{createIndexes: "c", indexes: [{key: {r: 1}, name: "ready"}], $db: "d"}`)
				before := len(m.builds(t))
				m.run(t, hang)
				built, joined := make(chan bson.Raw, 1), make(chan bson.Raw, 1)
				for _, reply := range []chan bson.Raw{built, joined} {
					conn := m.NewConn("builder")
					go func() { reply <- m.CallOn(t.Context(), conn, parse(t, c.build)) }()
					synctest.Wait()
				}
				during := make(chan bson.Raw, 1)
				go func() { during <- m.run(t, c.during) }()
				synctest.Wait()
				select {
				case r := <-during:
					if code, _ := r.Lookup("code").AsInt64OK(); servererr.Code(code) != c.code {
						t.Errorf("%s, want code %d", r, c.code)
					}
				default:
					t.Fatal("the command waits for the build")
				}
				if c.built != servererr.IndexBuildAborted && len(built) > 0 {
					t.Fatal("the build has ended")
				}
				m.run(t, proceed)
				first := <-built
				if code, _ := first.Lookup("code").AsInt64OK(); servererr.Code(code) != c.built {
					t.Errorf("%s, want code %d", first, c.built)
				}
				<-joined
				log := slices.Compact(m.builds(t)[before:])
				if got := strings.Join(log, " "); !strings.HasPrefix(got, c.log) {
					t.Errorf("logged %s, want %s", got, c.log)
				}
			})
		})
	}
}
