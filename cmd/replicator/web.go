package main

import (
	"context"
	"log/slog"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/oplogrep/replicator/status"
	"github.com/oplogrep/replicator/web"
)

// linkView is what a link shows over HTTP.
func linkView(t *status.Tracker) web.Link {
	return web.Link{
		Status: func() any { return t.Snapshot() },
		Health: func() (bool, string) { s := t.Snapshot(); return s.Healthy(), s.Health() },
	}
}

// serve serves a link until ctx is done.
func (p *front) serve(ctx context.Context, f *httpFlags, l web.Link, t *status.Tracker, registry *prometheus.Registry, log *slog.Logger) error {
	cfg := web.Config{
		Link: l, Ready: t.Ready, Metrics: registry, Registry: registry, Log: log, Types: web.Types{Status: status.Snapshot{}},
	}
	p.configure(&cfg, f)
	return p.run(ctx, cfg)
}

// run serves until ctx is done.
func (p *front) run(ctx context.Context, cfg web.Config) error {
	s, err := web.New(cfg)
	if err != nil {
		return err
	}
	return s.Serve(ctx, p.Listener)
}
