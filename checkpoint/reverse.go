package checkpoint

import (
	"context"
	"slices"
	"strconv"

	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/metadata"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/oplog"
)

// Filters are the lists that say what a link mirrors, and under which names; see package scope.
// They are in the link's document, so that others than the process that runs it know them.
type Filters struct {
	Include, Exclude, Map []string
	UsersAndRoles         bool
	// Reversed means that the lists are those of a link the other way: what they call the source is
	// this link's target.
	Reversed bool
}

// Reverse returns the filters of the way back.
func (f Filters) Reverse() Filters {
	f.Reversed = !f.Reversed
	return f
}

// Equal reports whether two sets of lists are the same texts.
func (f Filters) Equal(g Filters) bool {
	return slices.Equal(f.Include, g.Include) && slices.Equal(f.Exclude, g.Exclude) && slices.Equal(f.Map, g.Map) &&
		f.UsersAndRoles == g.UsersAndRoles && f.Reversed == g.Reversed
}

// Reverse is the way back of a link that has ended: where a link from its target to its source
// begins, without a copy. It is part of the end, so that there is no link with one of them only.
type Reverse struct {
	// Start is the entry of the target's oplog after which the way back begins: there the mirrored
	// namespaces of the target equal those of the source at Over.Source. Wall is its time, in
	// milliseconds since the epoch.
	Start oplog.OpTime
	Wall  int64
	// Target is the target's replica set: that which has Start.
	Target Source
	// Filters are those of the way back.
	Filters Filters
}

// Fields of the filters and of the way back.
const (
	fieldFilters = "filters"
	fieldReverse = "reverse"
)

func appendFilters(dst []byte, f *Filters) []byte {
	return metadata.AppendDoc(dst, fieldFilters, func(dst []byte) []byte {
		for _, list := range []struct {
			name  string
			texts []string
		}{{"include", f.Include}, {"exclude", f.Exclude}, {"map", f.Map}} {
			at, texts := bsoncore.AppendArrayElementStart(dst, list.name)
			for i, text := range list.texts {
				texts = bsoncore.AppendStringElement(texts, strconv.Itoa(i), text)
			}
			dst = metadata.CloseDoc(texts, at)
		}
		dst = bsoncore.AppendBooleanElement(dst, "usersAndRoles", f.UsersAndRoles)
		return bsoncore.AppendBooleanElement(dst, "reversed", f.Reversed)
	})
}

// readFilters reads the filters, nil if an earlier release has not recorded them.
func readFilters(r *metadata.Reader) *Filters {
	sub, ok := r.Doc(fieldFilters, true)
	if !ok {
		return nil
	}
	f := &Filters{UsersAndRoles: sub.Bool("usersAndRoles"), Reversed: sub.Bool("reversed")}
	for name, list := range map[string]*[]string{"include": &f.Include, "exclude": &f.Exclude, "map": &f.Map} {
		sub.List(name, func(e *rawbson.Elem) bool {
			text, ok := e.Text()
			*list = append(*list, string([]byte(text)))
			return ok
		})
	}
	r.Take(sub)
	return f
}

func appendReverse(dst []byte, v *Reverse) []byte {
	return metadata.AppendDoc(dst, fieldReverse, func(dst []byte) []byte {
		dst = metadata.AppendOpTime(dst, "start", v.Start)
		dst = bsoncore.AppendDateTimeElement(dst, "wall", v.Wall)
		dst = metadata.AppendDoc(dst, "target", func(dst []byte) []byte {
			if id := v.Target.ReplicaSetID; !id.IsZero() {
				dst = bsoncore.AppendValueElement(dst, "id", bsoncore.Value{Type: bsoncore.Type(id.Type), Data: id.Value})
			}
			return bsoncore.AppendStringElement(dst, "set", v.Target.SetName)
		})
		return appendFilters(dst, &v.Filters)
	})
}

func readReverse(r *metadata.Reader) *Reverse {
	sub, ok := r.Doc(fieldReverse, true)
	if !ok {
		return nil
	}
	v := &Reverse{Start: sub.OpTime("start", false), Wall: sub.Date("wall")}
	if target, ok := sub.Doc("target", false); ok {
		v.Target = Source{ReplicaSetID: target.Value("id"), SetName: target.Text("set"), RBID: -1}
		sub.Take(target)
	}
	if f := readFilters(sub); f != nil {
		v.Filters = *f
	} else {
		sub.Fault(fieldFilters, "a document")
	}
	r.Take(sub)
	return v
}

// SetFilters records the lists that say what the link mirrors, if they are not.
func (h *Link) SetFilters(ctx context.Context, f Filters) error {
	if is := h.state.Filters; is != nil && is.Equal(f) {
		return nil
	}
	return h.locked(ctx, func() error {
		err := h.update(ctx, func(dst []byte) []byte {
			return metadata.AppendDoc(dst, "$set", func(dst []byte) []byte { return appendFilters(dst, &f) })
		}, func(*mongo.Txn) error { return nil })
		if err == nil {
			h.state.Filters = &f
		}
		return err
	}, "record its filters")
}
