package verify

import (
	"context"
	"fmt"
	"log/slog"
	"strconv"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/idrange"
	"github.com/oplogrep/replicator/internal/metadata"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/rawbson"
)

// mostPlanBytes is the maximum size of the ranges of a collection that are stored. One with more
// begins again from its start.
const mostPlanBytes = 8 << 20

// Progress stores in a link's metadata which ranges are compared, so that a verification that
// was stopped can go on. What has been reported is not stored, but counted.
type Progress struct {
	// Target is the target, DB its metadata database, Link the link.
	Target mongo.Caller
	DB     string
	Link   string
	// Resume goes on with what is stored. Otherwise it is deleted.
	Resume bool

	// off is set if the user may not write to the metadata.
	off bool
}

// plan are the ranges of a collection; done are those that are compared, by index.
type plan struct {
	ranges [][]idrange.Piece
	done   map[int]savedRange
	// id is that of the stored document, empty if none is; made identifies its ranges, as
	// another verification may replace them.
	id   string
	made bson.ObjectID
}

// saved is a stored plan.
type saved struct {
	ID   string        `bson:"_id"`
	Made bson.ObjectID `bson:"made"`
	// Source and Target are the UUIDs of the collections.
	Source   bson.Binary           `bson:"source"`
	Target   bson.Binary           `bson:"target"`
	How      string                `bson:"how"`
	AnyOrder bool                  `bson:"anyOrder"`
	Ranges   []bson.RawValue       `bson:"ranges"`
	Done     map[string]savedRange `bson:"done"`
}

// savedRange is a range that is compared.
type savedRange struct {
	Tally Tally     `bson:"tally"`
	First *savedCut `bson:"first,omitempty"`
	Last  *savedCut `bson:"last,omitempty"`
}

type savedCut struct {
	Source bson.Timestamp `bson:"source"`
	Target bson.Timestamp `bson:"target"`
	At     time.Time      `bson:"at"`
}

func (c *savedCut) cut() *Cut { return (*Cut)(c) }

// begin deletes what an earlier verification has stored, unless it is resumed.
func (p *Progress) begin(ctx context.Context) error {
	if p.Resume {
		return nil
	}
	err := p.write(ctx, metadata.Delete(p.DB, metadata.Verified, metadata.Below(p.Link)))
	if servererr.IsDenied(err) {
		p.off = true
		return nil
	}
	return err
}

func (p *Progress) write(ctx context.Context, cmd mongo.Command) error {
	err := mongo.Retry{For: time.Minute, Again: again}.Do(ctx, func() error {
		reply, err := p.Target.Call(ctx, cmd)
		if err == nil {
			_, err = metadata.Written(reply)
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("store the progress in %s.%s of the target: %w", p.DB, metadata.Verified, err)
	}
	return nil
}

func uuidOf(l *listed) bson.Binary { return bson.Binary{Subtype: bson.TypeBinaryUUID, Data: l.uuid[:]} }

// load returns the stored plan of a pair, false if there is none that fits.
func (p *Progress) load(ctx context.Context, like *saved) (plan, bool, error) {
	docs, err := metadata.FindAll(ctx, mongo.Retry{For: time.Minute}, p.Target, nil, p.DB, metadata.Verified, "majority", metadata.ByID(like.ID))
	if err != nil {
		return plan{}, false, fmt.Errorf("read the progress in %s.%s of the target: %w", p.DB, metadata.Verified, err)
	}
	if len(docs) == 0 {
		return plan{}, false, nil
	}
	var s saved
	if err := bson.Unmarshal(docs[0], &s); err != nil {
		return plan{}, false, nil //nolint:nilerr // It is damaged, or of another release: the collection begins again.
	}
	if !s.Source.Equal(like.Source) || !s.Target.Equal(like.Target) || s.How != like.How || s.AnyOrder != like.AnyOrder {
		return plan{}, false, nil
	}
	out := plan{id: like.ID, made: s.Made, done: map[int]savedRange{}}
	for _, v := range s.Ranges {
		pieces, err := idrange.Parse(&rawbson.Elem{Type: v.Type, Value: v.Value})
		if err != nil {
			return plan{}, false, nil //nolint:nilerr // As above.
		}
		out.ranges = append(out.ranges, pieces)
	}
	for text, r := range s.Done {
		i, err := strconv.Atoi(text)
		if err != nil || i < 0 || i >= len(out.ranges) {
			return plan{}, false, nil //nolint:nilerr // As above.
		}
		out.done[i] = r
	}
	return out, len(out.ranges) > 0, nil
}

// plan returns the ranges of a collection: those that are stored, if the verification is resumed,
// or new ones, which it stores.
func (v *Verifier) plan(ctx context.Context, p *pair, how order) (plan, error) {
	progress := v.cfg.Progress
	if progress == nil || progress.off {
		ranges, err := v.split(ctx, p, how)
		return plan{ranges: ranges}, err
	}
	s := saved{
		ID: progress.Link + "/" + string(p.sourceNS), Made: bson.NewObjectID(), Source: uuidOf(p.want), Target: uuidOf(p.got), How: string(how),
		AnyOrder: v.cfg.AnyFieldOrder, Done: map[string]savedRange{},
	}
	if progress.Resume {
		stored, found, err := progress.load(ctx, &s)
		if err != nil || found {
			return stored, err
		}
	}
	ranges, err := v.split(ctx, p, how)
	if err != nil {
		return plan{}, err
	}
	size := 0
	for _, pieces := range ranges {
		list := bsoncore.NewArrayBuilder()
		for i := range pieces {
			list.AppendDocument(bsoncore.Document(pieces[i].Encode()))
		}
		array := list.Build()
		size += len(array)
		s.Ranges = append(s.Ranges, bson.RawValue{Type: bson.TypeArray, Value: array})
	}
	if size > mostPlanBytes {
		v.cfg.Observer.Log(slog.LevelInfo, "the progress of a collection is not stored: its ranges are too large", slog.String(keyNS, string(p.ns)))
		return plan{ranges: ranges}, nil
	}
	doc, err := bson.Marshal(&s)
	if err != nil {
		return plan{}, fmt.Errorf("store the progress of %s: %w", p.ns, err)
	}
	fields := doc[4 : len(doc)-1]
	return plan{ranges: ranges, id: s.ID, made: s.Made}, progress.write(ctx, metadata.Update(progress.DB, metadata.Verified, metadata.Statement{
		Filter: metadata.ByID(s.ID), Change: func(dst []byte) []byte { return append(dst, fields...) }, Upsert: true,
	}))
}

// compared stores that a range is compared, unless another verification has stored other ranges
// meanwhile.
func (v *Verifier) compared(ctx context.Context, pl *plan, i int, s *scan) error {
	if pl.id == "" {
		return nil
	}
	doc, err := bson.Marshal(&savedRange{Tally: s.tally, First: (*savedCut)(s.used.first), Last: (*savedCut)(s.used.last)})
	if err != nil {
		return fmt.Errorf("store the progress of %s: %w", s.p.ns, err)
	}
	p := v.cfg.Progress
	return p.write(ctx, metadata.Update(p.DB, metadata.Verified, metadata.Statement{
		Filter: func(dst []byte) []byte {
			return bsoncore.AppendObjectIDElement(metadata.ByID(pl.id)(dst), "made", pl.made)
		},
		Change: func(dst []byte) []byte {
			return metadata.AppendDoc(dst, "$set", func(dst []byte) []byte { return bsoncore.AppendDocumentElement(dst, "done."+strconv.Itoa(i), doc) })
		},
	}))
}

// end deletes what is stored, once all is compared.
func (p *Progress) end(ctx context.Context) error {
	if p.off {
		return nil
	}
	return p.write(ctx, metadata.Delete(p.DB, metadata.Verified, metadata.Below(p.Link)))
}
