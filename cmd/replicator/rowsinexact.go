package main

import (
	"context"
	"errors"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/guard"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/verify/standing"
)

// inexact has the foreign writes and the divergences of all links, as the metadata have them.
type inexact struct {
	target mongo.Caller
	db     string
	guard  map[string]*guard.State
	// diverged are the divergences of each link, compared since or not.
	diverged map[string][]checkpoint.Diverged
	// judged is of how many links it was read which of them were compared since.
	judged int
}

// mostJudged is of how many diverged links it is read which of their collections were compared since. Of more, all count: few links
// diverge, and /links is read every few seconds.
const mostJudged = 20

// surveyInexact reads the metadata of all links. With an error, the part that could be read is there.
func surveyInexact(ctx context.Context, target mongo.Caller, db string) (*inexact, error) {
	in := &inexact{target: target, db: db}
	var foreign, diverged error
	in.guard, foreign = guard.Survey(ctx, target, db)
	in.diverged, diverged = checkpoint.SurveyDiverged(ctx, target, db)
	return in, errors.Join(foreign, diverged)
}

// divergedOf returns the divergences of a link that are open; all that there are if that cannot be read.
func (in *inexact) divergedOf(ctx context.Context, link string) ([]checkpoint.Diverged, error) {
	all := in.diverged[link]
	if len(all) == 0 || in.judged >= mostJudged {
		return all, nil
	}
	in.judged++
	known, err := standing.Read(ctx, in.target, in.db, link)
	if err != nil {
		return all, err
	}
	return known.Diverged, nil
}
