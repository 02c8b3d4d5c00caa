package checkpoint

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/metadata"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/oplog"
)

// Requests are what operators want of a link, whatever process runs it, and
// wherever. They are kept in the metadata (collection requests) and read every few
// seconds by who runs the link.
type Requests struct {
	// BytesPerSecond and OpsPerSecond bound the copy; 0 is no bound, negative is
	// nothing said: what the process was started with counts.
	BytesPerSecond, OpsPerSecond int64
	// Resync are the collections, by the source's names, that are to be copied
	// again, with when that was asked for; the oldest first.
	Resync []ResyncRequest
}

// What becomes of the request to copy a collection again.
const (
	ResyncAsked   = "asked"
	ResyncCopying = "copying"
	ResyncJoining = "joining"
	ResyncDone    = "done"
	ResyncFailed  = "failed"
)

// ResyncRequest is one collection to be copied again.
type ResyncRequest struct {
	NS    oplog.Namespace
	Asked time.Time
	// State is what became of it, for who asked: ResyncAsked, and so on. Why is
	// the reason of ResyncFailed, and how far it is in ResyncCopying.
	State, Why string
}

// Names of the limits in the metadata.
const (
	bytesField = "bytesPerSecond"
	opsField   = "opsPerSecond"
	// againField is true in a request that is to be asked anew once it is done.
	againField = "again"
)

// requestID returns the _id of a request to copy a collection again. That of the
// limits is the link's name.
func requestID(link string, ns oplog.Namespace) string { return link + "/" + string(ns) }

// ReadRequests reads what is wanted of the link.
func (s *Store) ReadRequests(ctx context.Context) (Requests, error) {
	w := Requests{BytesPerSecond: -1, OpsPerSecond: -1}
	either := func(dst []byte) []byte {
		i, dst := bsoncore.AppendArrayElementStart(dst, "$or")
		dst = metadata.AppendDoc(dst, "0", metadata.ByID(s.cfg.Link))
		dst = metadata.AppendDoc(dst, "1", metadata.Below(s.cfg.Link))
		return metadata.CloseDoc(dst, i)
	}
	// It is read often: the server keeps one session in mind, not one for each.
	session := mongo.SessionID(s.cfg.DB, s.cfg.Link, s.holder, "requests")
	err := s.readAll(ctx, session, metadata.Requests, "majority", either, func(doc bson.Raw) error {
		return readRequest(s.cfg.Link, doc, &w)
	})
	if err != nil {
		return Requests{}, s.wrap(err, "read what is wanted of it")
	}
	slices.SortFunc(w.Resync, ResyncRequest.Compare)
	return w, nil
}

// Compare orders requests, the oldest first.
func (w ResyncRequest) Compare(o ResyncRequest) int {
	return cmp.Or(w.Asked.Compare(o.Asked), cmp.Compare(w.NS, o.NS))
}

// readRequest reads a document of requests.
func readRequest(link string, doc bson.Raw, w *Requests) error {
	if err := doc.Validate(); err != nil {
		return &metadata.DamagedError{Link: link, What: "a request: " + err.Error()}
	}
	r := metadata.NewReader(doc)
	id := r.Text("_id")
	if id == link {
		w.BytesPerSecond, w.OpsPerSecond = readLimit(r, bytesField), readLimit(r, opsField)
	} else {
		request := ResyncRequest{
			NS: oplog.Namespace(r.Text("ns")), Asked: time.UnixMilli(r.Date("asked")).UTC(),
			State: r.Text("state"), Why: r.Text("why"),
		}
		if id != requestID(link, request.NS) {
			r.Fault("_id", "that of its collection")
		}
		if !validResync(request.State) {
			r.Fault("state", "one of a request")
		}
		w.Resync = append(w.Resync, request)
	}
	if r.Err() != nil {
		return &metadata.DamagedError{Link: link, What: fmt.Sprintf("request %q: field %v", id, r.Err())}
	}
	return nil
}

// readLimit reads a limit, -1 where there is none.
func readLimit(r *metadata.Reader, name string) int64 {
	if !r.Has(name) {
		return -1
	}
	n := r.Int64(name)
	if n < 0 {
		r.Fault(name, "a limit")
	}
	return n
}

func validResync(state string) bool {
	switch state {
	case ResyncAsked, ResyncCopying, ResyncJoining, ResyncDone, ResyncFailed:
		return true
	}
	return false
}

// RequestLimits sets the limits; negative removes what was requested.
func (s *Store) RequestLimits(ctx context.Context, bytesPerSecond, opsPerSecond int64) error {
	err := s.request(ctx, metadata.Statement{
		Filter: metadata.ByID(s.cfg.Link),
		Change: func(dst []byte) []byte {
			if bytesPerSecond >= 0 {
				dst = bsoncore.AppendInt64Element(dst, bytesField, bytesPerSecond)
			}
			if opsPerSecond >= 0 {
				dst = bsoncore.AppendInt64Element(dst, opsField, opsPerSecond)
			}
			return dst
		},
		Upsert: true,
	})
	if err != nil {
		return s.wrap(err, "limit its copy to %d bytes and %d operations per second", bytesPerSecond, opsPerSecond)
	}
	return nil
}

// RequestResync asks for a collection to be copied again. A request for it that is not
// done or failed stays as it is.
func (s *Store) RequestResync(ctx context.Context, ns oplog.Namespace) error {
	if db, collection, ok := strings.Cut(string(ns), "."); !ok || db == "" || collection == "" {
		return s.wrap(errors.New("it is not a database and a collection"), "ask for %q to be copied again", ns)
	}
	err := s.request(ctx, metadata.Statement{
		Filter: func(dst []byte) []byte {
			dst = metadata.ByID(requestID(s.cfg.Link, ns))(dst)
			return metadata.AppendDoc(dst, "state", func(dst []byte) []byte { return metadata.AppendIn(dst, ResyncDone, ResyncFailed) })
		},
		Change: func(dst []byte) []byte {
			return metadata.AppendDoc(dst, "$set", func(dst []byte) []byte {
				dst = bsoncore.AppendStringElement(dst, "ns", string(ns))
				dst = bsoncore.AppendDateTimeElement(dst, "asked", time.Now().UnixMilli())
				dst = bsoncore.AppendStringElement(dst, "state", ResyncAsked)
				return bsoncore.AppendStringElement(dst, "why", "")
			})
		},
		Upsert: true,
	})
	// One that is there and does not match is still to be done.
	if err != nil && !servererr.IsDuplicateKey(err) {
		return s.wrap(err, "ask for %s to be copied again", ns)
	}
	return nil
}

// RequestResyncAgain asks for a collection to be copied again by a copy that begins after
// this call: what the target has of it may have been damaged just now. Where one is
// under way the request is asked anew once that is done, or has failed.
func (s *Store) RequestResyncAgain(ctx context.Context, ns oplog.Namespace) error {
	// One that ends between the two is met by the second try; one that is asked and
	// not begun needs neither.
	for range 2 {
		if err := s.RequestResync(ctx, ns); err != nil {
			return err
		}
		err := s.request(ctx, metadata.Statement{
			Filter: func(dst []byte) []byte {
				dst = metadata.ByID(requestID(s.cfg.Link, ns))(dst)
				return metadata.AppendDoc(dst, "state", func(dst []byte) []byte { return metadata.AppendIn(dst, ResyncCopying, ResyncJoining) })
			},
			Change: func(dst []byte) []byte {
				return metadata.AppendDoc(dst, "$set", func(dst []byte) []byte { return bsoncore.AppendBooleanElement(dst, againField, true) })
			},
		})
		if err != nil {
			return s.wrap(err, "ask for %s to be copied again after this", ns)
		}
	}
	return nil
}

// TellResync says what became of the request. One that somebody has removed stays
// so.
func (s *Store) TellResync(ctx context.Context, ns oplog.Namespace, state, why string) error {
	told, err := s.told(ns, state, why)
	if err == nil {
		err = s.request(ctx, told...)
	}
	if err != nil {
		return s.wrap(err, "say that copying %s again is %q", ns, state)
	}
	return nil
}

// TellResync does the same, in a transaction that finds the link where this Link
// left it: who has been fenced says nothing. A collection that is left out is taken
// back with ResyncDone, unless it was asked for again meanwhile, and stays left out with ResyncFailed, without being tried.
func (h *Link) TellResync(ctx context.Context, ns oplog.Namespace, state, why string) error {
	return h.tellResync(ctx, ns, state, why, func(list []LeftOut) []LeftOut {
		out, found := find(list, ns)
		switch {
		case found && state == ResyncDone:
			return without(list, ns)
		case found && state == ResyncFailed:
			out.Failed = cmp.Or(why, "for a reason that is not known")
			return with(list, out)
		}
		return list
	})
}

// LeaveOut leaves a collection out from the checkpoint on that the Link began with,
// because it is requested to be copied again: the request is ResyncCopying from then on.
// One that is left out already keeps its place in the log. Both are committed by a
// majority when it returns, before anything happens to what the target has of it.
func (h *Link) LeaveOut(ctx context.Context, request ResyncRequest) error {
	return h.tellResync(ctx, request.NS, ResyncCopying, "", func(list []LeftOut) []LeftOut {
		out, found := find(list, request.NS)
		if !found {
			out = LeftOut{NS: request.NS, Since: h.state.Applied, Wall: h.state.AppliedWall}
		}
		out.Asked, out.Failed = request.Asked, ""
		return with(list, out)
	})
}

// tellResync says what became of a request, and changes what the link leaves out.
func (h *Link) tellResync(ctx context.Context, ns oplog.Namespace, state, why string, change func([]LeftOut) []LeftOut) error {
	told, err := h.store.told(ns, state, why)
	if err != nil {
		return h.store.wrap(err, "say that copying %s again is %q", ns, state)
	}
	return h.locked(ctx, func() error {
		var list []LeftOut
		err := h.lease.InTxn(ctx, h.txns, func(txn *mongo.Txn) error {
			list = change(h.leftOut)
			if out, was := find(h.leftOut, ns); was && state == ResyncDone {
				again, err := h.isAskedAgain(ctx, txn, ns)
				if err != nil {
					return err
				}
				if again {
					// What the target has may have been damaged when it was asked: the link does
					// not have it before it was copied once more.
					list = with(h.leftOut, out)
				}
			}
			err := h.changeLink(ctx, txn, func(dst []byte) []byte {
				if slices.Equal(list, h.leftOut) {
					return dst
				}
				return changeLeftOut(dst, h.copy, list)
			})
			if err != nil {
				return err
			}
			return metadata.Run(ctx, txn, metadata.Update(h.store.cfg.DB, metadata.Requests, told...), -1)
		})
		if err != nil {
			return err
		}
		h.mu.Lock()
		h.leftOut = list
		h.mu.Unlock()
		return nil
	}, "say that copying %s again is %q", ns, state)
}

// isAskedAgain tells whether a collection is to be copied once more after it was.
func (h *Link) isAskedAgain(ctx context.Context, txn *mongo.Txn, ns oplog.Namespace) (bool, error) {
	cfg := &h.store.cfg
	reply, err := txn.Call(ctx, metadata.Find(cfg.DB, metadata.Requests, 1, metadata.ByID(requestID(cfg.Link, ns)), againField))
	if err != nil {
		return false, err
	}
	docs, err := metadata.Found(reply)
	if err != nil || len(docs) == 0 {
		return false, err
	}
	again, _ := rawbson.Lookup(docs[0], againField)
	return again.Truth(), nil
}

// told is what is said of a request. One that is over, and was asked for meanwhile, is
// asked anew.
func (s *Store) told(ns oplog.Namespace, state, why string) ([]metadata.Statement, error) {
	if !validResync(state) {
		return nil, errors.New("it is no state of a request")
	}
	list := []metadata.Statement{{
		Filter: metadata.ByID(requestID(s.cfg.Link, ns)),
		Change: func(dst []byte) []byte {
			return metadata.AppendDoc(dst, "$set", func(dst []byte) []byte {
				dst = bsoncore.AppendStringElement(dst, "state", state)
				return bsoncore.AppendStringElement(dst, "why", why)
			})
		},
	}}
	if state != ResyncDone && state != ResyncFailed {
		return list, nil
	}
	return append(list, metadata.Statement{
		Filter: func(dst []byte) []byte {
			return bsoncore.AppendBooleanElement(metadata.ByID(requestID(s.cfg.Link, ns))(dst), againField, true)
		},
		Change: func(dst []byte) []byte {
			dst = metadata.AppendDoc(dst, "$set", func(dst []byte) []byte {
				dst = bsoncore.AppendDateTimeElement(dst, "asked", time.Now().UnixMilli())
				return bsoncore.AppendStringElement(dst, "state", ResyncAsked)
			})
			return metadata.AppendDoc(dst, "$unset", func(dst []byte) []byte { return bsoncore.AppendStringElement(dst, againField, "") })
		},
	}), nil
}

// request changes requests, in order.
func (s *Store) request(ctx context.Context, changes ...metadata.Statement) error {
	reply, err := s.cfg.Target.Call(ctx, metadata.Majority(metadata.Update(s.cfg.DB, metadata.Requests, changes...)))
	if err == nil {
		_, err = metadata.Written(reply)
	}
	return err
}
