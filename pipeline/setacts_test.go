package pipeline_test

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/mongosim"
)

// onSet does something to a set:
//
//	insert|update|delete NS FROM..TO [KEY=VALUE ...]   on=MEMBER, w=N, size=BYTES
//	txn NS FROM..TO                     insert in one transaction
//	prepare NAME NS FROM..TO            and leave it prepared; commit NAME, abort NAME
//	seed P, reshape P, cluster P        see seeded and reshaped
//	run DB JSON                         a command on the primary; run-refused, where
//	                                    that is to be said
//	failpoint NAME MODE                 of the primary
//	wipe MEMBER                         empty its disk
//	count NS                            say how many documents there are
//	unsettle                            step down until that ends an attempt
//	mark NAME                           remember the time of the newest entry
//	isolate MEMBER                      cut it off from the other members
//	await primary|synced|rollback       wait for one, for all, or for a rollback
//	ACTION                              of mongosim: kill 0, stepdown, cut A client
func (w *world) onSet(c *cluster, args []string, line string) (string, error) {
	ctx, cancel := context.WithTimeout(w.t.Context(), patience)
	defer cancel()
	if c == w.target && slices.Contains([]string{"insert", "update", "delete", "run"}, args[0]) {
		w.foreign.Store(true)
	}
	switch verb := args[0]; verb {
	case "insert", "update", "delete":
		return "", w.writes(ctx, c, verb, args[1:])
	case "txn":
		return "", c.transaction(ctx, "txn", args[1:], "commitTransaction")
	case "prepare":
		return "", c.transaction(ctx, args[1], args[2:], "prepareTransaction")
	case "commit":
		return "", c.endPrepared(ctx, args[1], "commitTransaction")
	case "abort":
		return "", c.endPrepared(ctx, args[1], "abortTransaction")
	case "seed", "reshape", "cluster":
		return "", c.reshape(ctx, map[string]string{"seed": seeded, "reshape": reshaped, "cluster": clustered}[verb], args[1])
	case "run", "run-refused":
		return c.command(ctx, args, line)
	case "count":
		n, err := c.count(ctx, args[1])
		return fmt.Sprintf("%d documents in %s", n, args[1]), err
	case "mark":
		if w.marks == nil {
			w.marks = map[string]bson.Timestamp{}
		}
		w.marks[args[1]] = w.newest().TS
		return "", nil
	case "forge": // a checkpoint behind the source's newest entry
		return "", w.forge(ctx)
	case "replace": // all of its data by another set of the same name
		return "", w.replace()
	}
	return "", w.onMembers(ctx, c, args)
}

// onMembers carries out the acts of onSet on members, not data.
func (w *world) onMembers(ctx context.Context, c *cluster, args []string) error {
	switch verb := args[0]; verb {
	case "failpoint":
		p := c.Primary()
		if p == nil {
			return mongosim.ErrNoPrimary
		}
		_, err := c.on(ctx, p.ID(), "admin", bson.D{{Key: "configureFailPoint", Value: args[1]}, {Key: "mode", Value: args[2]}})
		return err
	case "wipe":
		n, err := w.memberOf(c, args[1])
		if err != nil {
			return err
		}
		return c.Member(n).Wipe()
	case "unsettle":
		return w.unsettle(ctx, c)
	case "isolate":
		n, err := w.memberOf(c, args[1])
		if err != nil {
			return err
		}
		w.isolated = n + 1
		c.Isolate(n)
		return nil
	case "await":
		if known, err := w.awaitSet(ctx, c, args[1:]); known {
			return err
		}
	}
	for i, word := range args {
		if i > 0 {
			if n, err := w.memberOf(c, word); err == nil {
				args[i] = strconv.Itoa(n)
			}
		}
	}
	a, err := mongosim.ParseAction(strings.Join(args, " "))
	if err != nil {
		return err
	}
	return c.Do(ctx, a)
}

// awaitSet waits for a state of the set, and reports whether the act is known.
func (w *world) awaitSet(ctx context.Context, c *cluster, args []string) (known bool, err error) {
	switch args[0] {
	case "primary":
		_, err := c.AwaitPrimary(ctx)
		return true, err
	case "synced":
		if err := c.AwaitReady(ctx); err != nil {
			return true, err
		}
		return true, c.AwaitSynced(ctx)
	case "another": // primary than MEMBER
		n, err := w.memberOf(c, args[1])
		if err != nil {
			return true, err
		}
		return true, w.until("another primary", func() bool { p := c.Primary(); return p != nil && p.ID() != n })
	default:
		return false, nil
	}
}

// command runs a command on the primary: run DB JSON, or run-refused DB JSON.
func (c *cluster) command(ctx context.Context, args []string, line string) (string, error) {
	var cmd bson.D
	text := line[strings.Index(line, args[1])+len(args[1]):]
	if err := bson.UnmarshalExtJSON([]byte(text), false, &cmd); err != nil {
		return "", err
	}
	err := c.write(ctx, args[1], cmd)
	if args[0] == "run-refused" {
		return "refused: " + kind(err), nil
	}
	return "", err
}

// span parses FROM..TO.
func span(text string) (from, to int, err error) {
	a, b, ok := strings.Cut(text, "..")
	from, errFrom := strconv.Atoi(a)
	to, errTo := strconv.Atoi(b)
	if !ok || errFrom != nil || errTo != nil {
		return 0, 0, fmt.Errorf("%q is not FROM..TO", text)
	}
	return from, to, nil
}

// writes sends the commands of an act that writes, several documents at a time.
func (w *world) writes(ctx context.Context, c *cluster, verb string, args []string) error {
	db, coll, _ := strings.Cut(args[0], ".")
	from, to, err := span(args[1])
	if err != nil {
		return err
	}
	member, size, concern := -1, 0, bson.D(nil)
	for _, arg := range args[2:] {
		key, value, _ := strings.Cut(arg, "=")
		switch key {
		case "on":
			if member, err = w.memberOf(c, value); err != nil {
				return err
			}
		case "w":
			n, _ := strconv.Atoi(value)
			concern = bson.D{{Key: "w", Value: n}}
		case "size":
			size, _ = strconv.Atoi(value)
		default:
			return fmt.Errorf("unknown option %s", key)
		}
	}
	step := 50
	if size > 100_000 {
		step = 1
	}
	for at := from; at <= to; at += step {
		cmd := statements(verb, coll, at, min(at+step-1, to), size)
		if concern != nil {
			cmd = append(cmd, bson.E{Key: "writeConcern", Value: concern})
		}
		if member >= 0 {
			_, err = c.on(ctx, member, db, cmd)
		} else {
			err = c.write(ctx, db, cmd)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func statements(verb, coll string, from, to, size int) bson.D {
	list := bson.A{}
	for id := from; id <= to; id++ {
		byID := bson.D{{Key: "_id", Value: id}}
		switch verb {
		case "insert":
			doc := bson.D{{Key: "_id", Value: id}, {Key: "x", Value: id % 7}}
			if size > 0 {
				doc = append(doc, bson.E{Key: "filler", Value: strings.Repeat("x", size)})
			}
			list = append(list, doc)
		case "update":
			list = append(list, bson.D{{Key: "q", Value: byID}, {Key: "u", Value: bson.D{
				{Key: "$inc", Value: bson.D{{Key: "n", Value: 1}}}, {Key: "$push", Value: bson.D{{Key: "list", Value: id}}},
			}}})
		case "delete":
			list = append(list, bson.D{{Key: "q", Value: byID}, {Key: "limit", Value: 1}})
		}
	}
	field := map[string]string{"insert": "documents", "update": "updates", "delete": "deletes"}[verb]
	return bson.D{{Key: verb, Value: coll}, {Key: field, Value: list}}
}
