package demo

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/request"
	"github.com/oplogrep/replicator/status"
	"github.com/oplogrep/replicator/web"
	"github.com/oplogrep/replicator/web/page"
)

// servePage serves the page of the link, and says where, until the returned function is called.
func (d *Demo) servePage(ctx context.Context) (stop func(), err error) {
	if d.cfg.Listen == "" {
		return func() {}, nil
	}
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", d.cfg.Listen)
	if err != nil {
		return nil, fmt.Errorf("demo: serve the page: %w", err)
	}
	store, err := checkpoint.New(checkpoint.Config{Target: d.target, DB: metaDB, Link: link})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("demo: %w", err), listener.Close())
	}
	server, err := web.New(web.Config{
		Address: listener.Addr(), Page: page.Handler(), Metrics: d.registry, Types: web.Types{Status: status.Snapshot{}}, Version: "demo", Log: slog.New(slog.DiscardHandler),
		Link: web.Link{
			Status:   func() any { return d.tracker.Snapshot() },
			Health:   func() (bool, string) { s := d.tracker.Snapshot(); return s.Healthy(), s.Health() },
			Requests: operator{request.New(store)},
			History: func(span time.Duration) (any, error) {
				v, err := d.tracker.History(span)
				return v, err
			},
			Events: d.events,
		},
	})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("demo: %w", err), listener.Close())
	}
	d.screen.line("the page of the link is at http://%s/", listener.Addr())
	ctx, cancel := context.WithCancelCause(ctx)
	var end sync.WaitGroup
	end.Go(func() {
		if err := server.Serve(ctx, listener); err != nil {
			d.screen.line("%s", err)
		}
	})
	return func() {
		cancel(errOver)
		end.Wait()
	}, nil
}

// events are those after an id, and a channel that is closed when there are more.
func (d *Demo) events(after uint64) (list []web.Event, more <-chan struct{}) {
	more = d.tracker.News() // before the events, so that none is missed
	for _, e := range d.tracker.EventsAfter(after) {
		list = append(list, web.Event{ID: e.Seq, Body: e})
	}
	return list, more
}

// operator takes the requests of the page.
type operator struct{ store *request.Store }

// Ask implements web.Requests.
func (o operator) Ask(ctx context.Context, r web.Request) (string, error) {
	made, err := o.store.Ask(ctx, request.Ask{Kind: request.Kind(r.Kind), By: r.By, Why: r.Why, Args: r.Args})
	if errors.Is(err, request.ErrInvalid) {
		err = fmt.Errorf("%w: %w", web.ErrRefused, err)
	}
	return made.ID, err
}

// List implements web.Requests.
func (o operator) List(ctx context.Context) (any, error) {
	list, err := o.store.List(ctx)
	return append([]request.Record{}, list...), err
}

// keptPause is the time between two writes while the demo is kept.
const keptPause = 50 * time.Millisecond

// keep leaves the link running, and writes a little, until ctx is done.
func (d *Demo) keep(ctx context.Context) error {
	d.screen.line("%s", d.result.Compared.String())
	d.screen.line("everything stays as it is until Ctrl-C, and a document is written now and then")
	d.screen.line("source  %s\ntarget  %s", d.sourceSet.URI(), d.targetSet.URI())
	close(d.kept)
	tick := time.NewTicker(keptPause)
	defer tick.Stop()
	for n := int32(0); ; n++ {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil // as it should end
		}
		doc := bsoncore.NewDocumentBuilder().AppendString("_id", fmt.Sprintf("kept-%d", n)).AppendDateTime("at", time.Now().UnixMilli()).Build()
		body := bsoncore.NewDocumentBuilder().AppendString("insert", filled).AppendArray("documents", bsoncore.NewArrayBuilder().AppendDocument(doc).Build()).Build()
		if _, err := d.source.Call(ctx, mongo.Command{DB: filledDB, Body: bson.Raw(body)}); err != nil && ctx.Err() == nil {
			// The user may stop the source.
			d.screen.line("write to the source: %v", err)
		}
	}
}
