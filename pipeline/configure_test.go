package pipeline_test

import (
	"strconv"
	"strings"
	"time"

	"github.com/oplogrep/replicator/applier/ddl"
	"github.com/oplogrep/replicator/internal/memory"
	"github.com/oplogrep/replicator/lease"
	"github.com/oplogrep/replicator/pipeline"
	"github.com/oplogrep/replicator/scope"
	"github.com/oplogrep/replicator/syncsource"
)

// configure starts a link with a configuration of KEY=VALUE.
func (w *world) configure(name string, args []string) error {
	cfg := pipeline.Config{Writers: 4, RetryMax: time.Second, Await: time.Second}
	if w.registry != nil { // a nil *Registry is not a nil Registerer
		cfg.Registry = w.registry
	}
	var sc scope.Config
	for _, arg := range args {
		key, value, _ := strings.Cut(arg, "=")
		n, _ := strconv.Atoi(value)
		switch key {
		case "link":
			cfg.Link = value
		case "writers":
			cfg.Writers = n
		case "relaxed":
			cfg.Relaxed = true
		case "report":
			cfg.ReportDivergence = true
		case "serialized":
			cfg.UniqueIndexes = ddl.Serialized
		case "exclude":
			sc.Exclude = append(sc.Exclude, value)
		case "map":
			sc.Map = append(sc.Map, strings.ReplaceAll(value, ":", "="))
		case "read":
			cfg.Rules.Mode = syncsource.Mode(value)
		case "flush":
			cfg.FlushDocs, cfg.CoalesceWindow = n, n
		case "shares":
			cfg.ShareOps, cfg.ShareRest = n, 1
		case "checkpoint", "delay", "await", "lease", "cutoff", "spoolwait", "offer", "cuts":
			if err := configureTime(&cfg, name, key, value); err != nil {
				return err
			}
		case "memory":
			cfg.Memory = memory.MinLink
		case "takeover":
			cfg.Lease.TakeOver = true
		case "once":
			cfg.Lease.Once = true
		case "start-at":
			cfg.StartAt = w.marks[value]
		default:
			if err := w.configureCopy(&cfg, key, value); err != nil {
				return err
			}
		}
	}
	return w.start(name, cfg, sc)
}

// configureTime sets a duration of a configuration.
func configureTime(cfg *pipeline.Config, name, key, value string) error {
	d, err := time.ParseDuration(value)
	if err != nil {
		return err
	}
	l := &cfg.Lease
	if key == "lease" { // the rest of its settings are those of the program
		l.Every, l.Process = d/5, lease.NewProcess(name)
	}
	*map[string]*time.Duration{
		"checkpoint": &cfg.CheckpointInterval, "delay": &cfg.Delay, "await": &cfg.Await, "lease": &l.TTL, "cutoff": &l.CutOff, "spoolwait": &l.SpoolWait, "offer": &l.OfferFor,
		"cuts": &cfg.CutInterval,
	}[key] = d
	return nil
}
