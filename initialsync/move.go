package initialsync

import (
	"context"
	"log/slog"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/initialsync/clone"
	"github.com/oplogrep/replicator/initialsync/progress"
	"github.com/oplogrep/replicator/oplog"
)

// stake is what a copy loses with its member.
type stake struct {
	// begun are the collections whose copy cannot continue with another member, of which
	// documents were copied, rest those of which none was.
	begun, rest []progress.Collection
	// lost of all bytes that were copied are those of begun.
	lost, all int64
}

// atStake returns the part of the copy that another member would have to read again.
func atStake(ctx context.Context, link *progress.Link) (stake, error) {
	var s stake
	docs, ranges, err := link.Copies(ctx)
	if err != nil {
		return s, err
	}
	of := map[oplog.UUID][]progress.Range{}
	for i := range ranges {
		of[ranges[i].UUID] = append(of[ranges[i].UUID], ranges[i])
		s.all += ranges[i].Bytes
	}
	for i := range docs {
		if docs[i].State != progress.Created {
			continue
		}
		if err := s.add(docs[i], of[docs[i].UUID]); err != nil {
			return s, err
		}
	}
	return s, nil
}

func (s *stake) add(coll progress.Collection, ranges []progress.Range) error {
	portable, err := clone.IsPortable(&coll, ranges)
	if portable || err != nil {
		return err
	}
	started := false
	for i := range ranges {
		started = started || len(ranges[i].At) > 0
		s.lost += ranges[i].Bytes
	}
	coll.Again, coll.ByID = clone.MustDrop(&coll, started), clone.HasOrder(&coll)
	if started {
		s.begun = append(s.begun, coll)
	} else {
		s.rest = append(s.rest, coll)
	}
	return nil
}

// lossOf returns the share of the copied bytes that are read again if another member
// continues the copy.
func lossOf(ctx context.Context, link *progress.Link) (float64, error) {
	s, err := atStake(ctx, link)
	switch {
	case err != nil:
		return 0, err
	case s.lost == 0:
		return 0, nil
	}
	return float64(s.lost) / float64(s.all), nil
}

// move records another member, and makes the collections planned again that cannot continue
// with it; it returns the names of those of which something was copied. These are recorded
// with the member: if that fails, nothing is lost.
func move(ctx context.Context, link *progress.Link, next checkpoint.Copy) ([]oplog.Namespace, error) {
	s, err := atStake(ctx, link)
	if err != nil {
		return nil, err
	}
	for i := range s.rest {
		if err := link.Replan(ctx, s.rest[i]); err != nil {
			return nil, err
		}
	}
	again := make([]oplog.Namespace, len(s.begun))
	for i := range s.begun {
		again[i] = s.begun[i].NS
	}
	return again, link.MoveCopy(ctx, next, s.begun)
}

// CopyMoved announces that a copy is read from another member, or from the same one after
// it has changed.
type CopyMoved struct {
	Number   int64
	From, To string
	Why      string
	// Again are the collections of which everything is read again.
	Again []oplog.Namespace
}

// Message implements event.Event.
func (CopyMoved) Message() string { return "the copy continues from another member" }

// Level implements event.Event.
func (CopyMoved) Level() slog.Level { return slog.LevelWarn }

// LogValue implements slog.LogValuer.
func (e CopyMoved) LogValue() slog.Value {
	return slog.GroupValue(slog.Int64(keyNumber, e.Number), slog.String(keyFrom, e.From), slog.String(keyHost, e.To),
		slog.String(keyWhy, e.Why), slog.Int(keyCollections, len(e.Again)), slog.Any(keyAgain, e.Again))
}
