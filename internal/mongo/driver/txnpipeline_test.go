package driver_test

import (
	"errors"
	"fmt"
	"strconv"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/driver"
	"github.com/oplogrep/replicator/internal/mongo/driver/drivertest"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/mongosim"
)

// TestRefusedTransaction: whichever command of a transaction fails, and however, the
// commands sent after it have no effect, neither in the target nor in another transaction
// of the session: the previous one, which was left open, or the next one.
func TestRefusedTransaction(t *testing.T) {
	t.Parallel()
	const n = 100
	set := start(t, mongosim.Options{Members: 1})
	s := open(t, driver.Config{URI: set.URI()})
	must(t, s, "create", "c")
	insert := func(id string) mongo.Command {
		cmd := command(t, "insert", "c")
		cmd.Sequence, cmd.Docs = "documents", []bson.Raw{drivertest.Doc(t, bson.D{{Key: "_id", Value: id}})}
		return cmd
	}
	each := func(_ int, reply bson.Raw) error {
		_, err := mongo.Written(reply)
		return err
	}
	count := func() int64 {
		t.Helper()
		return must(t, s, "count", "c").Lookup("n").AsInt64()
	}
	session := mongo.NewSession(s, mongo.SessionID(t.Name()), 1)
	for _, at := range []int{0, 1, 64, 65, n - 1} {
		for _, how := range []struct {
			code int
			how  bson.D
		}{
			{112, bson.D{{Key: "errorCode", Value: 112}, {Key: "errorLabels", Value: bson.A{servererr.LabelTransient}}}},
			{13, bson.D{{Key: "errorCode", Value: 13}}},
			{10107, bson.D{{Key: "errorCode", Value: 10107}}},
			{0, bson.D{{Key: "closeConnection", Value: true}}},
		} {
			name := fmt.Sprintf("%d refused with %d", at, how.code)
			open := session.Begin()
			if err := open.CallAll(within(t), []mongo.Command{insert("open1"), insert("open2")}, each); err != nil {
				t.Fatalf("%s: the one before: %v", name, err)
			}
			point := command(t, "configureFailPoint", "failCommand", "mode", bson.D{{Key: "times", Value: 1}},
				"data", append(bson.D{{Key: "failCommands", Value: bson.A{"update"}}}, how.how...))
			point.DB = "admin"
			if _, err := s.Call(within(t), point); err != nil {
				t.Fatal(err)
			}
			txn := session.Begin()
			var cmds []mongo.Command
			for i := range n {
				cmds = append(cmds, insert(strconv.Itoa(i)))
			}
			cmds[at] = command(t, "update", "c", "updates", bson.A{bson.D{{Key: "q", Value: bson.D{{Key: "_id", Value: "0"}}}, {Key: "u", Value: bson.D{}}}})
			replies := 0
			err := txn.CallAll(within(t), cmds, func(i int, reply bson.Raw) error { replies++; return each(i, reply) })
			if e, ok := errors.AsType[*servererr.Error](err); ok != (how.code != 0) || ok && int(e.Code) != how.code || err == nil || replies != at {
				t.Errorf("%s: %v after %d replies", name, err, replies)
			}
			if _, err := txn.Commit(within(t), true); !errors.Is(err, mongo.ErrTxnEnded) {
				t.Errorf("%s: its commit: %v", name, err)
			}
			next := session.Begin()
			if err := next.CallAll(within(t), []mongo.Command{insert("a"), insert("b")}, each); err != nil {
				t.Fatalf("%s: the next one: %v", name, err)
			}
			if _, err := next.Commit(within(t), true); err != nil {
				t.Fatalf("%s: the next one's commit: %v", name, err)
			}
			if got := count(); got != 2 {
				t.Errorf("%s: %d documents are there, want 2", name, got)
			}
			must(t, s, "delete", "c", "deletes", bson.A{bson.D{{Key: "q", Value: bson.D{}}, {Key: "limit", Value: 0}}})
		}
	}
}
