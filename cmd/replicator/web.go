package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/history"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/request"
	"github.com/oplogrep/replicator/status"
	"github.com/oplogrep/replicator/web"
)

// linkView is the HTTP view of a link, and takes its requests.
func (c *runCommand) linkView(t *status.Tracker, target mongo.Caller) (web.Link, error) {
	store, err := checkpoint.New(checkpoint.Config{Target: target, DB: c.MetadataDB, Link: c.Link})
	if err != nil {
		return web.Link{}, err
	}
	return web.Link{
		Status:   func() any { return t.Snapshot() },
		Health:   func() (bool, string) { s := t.Snapshot(); return s.Healthy(), s.Health() },
		Requests: operators{request.New(store)},
		History: func(span time.Duration) (any, error) {
			v, err := t.History(span)
			return v, err
		},
		Events: func(after uint64) ([]web.Event, <-chan struct{}) {
			news := t.News() // before the events, so that none is missed
			return streamed(t.EventsAfter(after)), news
		},
	}, nil
}

// streamed are events in the form in which they are streamed. The id of a place in the stream is not
// that of the event: see history.Event.
func streamed(list []history.Event) []web.Event {
	out := make([]web.Event, len(list))
	for i := range list {
		out[i] = web.Event{ID: list[i].Seq, Body: list[i]}
	}
	return out
}

// historyShape is the JSON form of a history.View, for the OpenAPI document.
type historyShape struct {
	At          time.Time             `json:"at"`
	StepSeconds int64                 `json:"stepSeconds"`
	From        int64                 `json:"from"`
	Series      map[string][]*float64 `json:"series"`
	Events      []history.Event       `json:"events"`
}

// operators are the requests of a link.
type operators struct{ store *request.Store }

// Ask implements web.Requests.
func (o operators) Ask(ctx context.Context, r web.Request) (string, error) {
	made, err := o.store.Ask(ctx, request.Ask{Kind: request.Kind(r.Kind), By: r.By, Why: r.Why, Args: r.Args})
	if errors.Is(err, request.ErrInvalid) {
		err = fmt.Errorf("%w: %w", web.ErrRefused, err)
	}
	return made.ID, err
}

// List implements web.Requests.
func (o operators) List(ctx context.Context) (any, error) {
	list, err := o.store.List(ctx)
	return append([]request.Record{}, list...), err // a list without elements is one too
}

// serve serves a link until ctx is done.
func (c *runCommand) serve(ctx context.Context, at *front, l web.Link, t *status.Tracker, target mongo.Caller, registry *prometheus.Registry, log *slog.Logger) error {
	cfg := web.Config{
		Link: l, Ready: t.Ready, Metrics: registry, Registry: registry, Log: log,
		Links: func(ctx context.Context) (any, error) {
			s := t.Snapshot()
			return rowsOf(ctx, target, c.MetadataDB, []linkRow{ownRow(&s, "./")}).worst(), nil
		},
		Types: web.Types{Status: status.Snapshot{}, History: historyShape{}, Links: linkRows{}, Requests: []request.Record{}},
	}
	at.configure(&cfg, &c.httpFlags)
	return at.run(ctx, cfg)
}

// run serves until ctx is done.
func (p *front) run(ctx context.Context, cfg web.Config) error {
	s, err := web.New(cfg)
	if err != nil {
		return err
	}
	return s.Serve(ctx, p.Listener)
}
