package mongosim

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/mongosim/internal/repl"
	"github.com/oplogrep/replicator/oplog"
)

// electEvery is how long the first election may take before it is tried again: other members
// with a short election timeout are elected sooner.
const electEvery = time.Second

// initiate installs the configuration on the first member that may become
// primary, and waits until one is and every data-bearing member has its data.
func (s *Set) initiate(ctx context.Context) error {
	for _, m := range s.Members() {
		if m.opts.Arbiter || m.opts.NoPriority {
			continue
		}
		node, err := m.node()
		if err == nil {
			err = node.Initiate(ctx, s.config())
		}
		if err == nil {
			err = s.await(ctx, "the configuration", s.configured)
		}
		if err != nil {
			return fmt.Errorf("mongosim: initiate %s: %w", s.opts.SetName, err)
		}
		if err := s.electFirst(ctx, node); err != nil {
			return err
		}
		return s.AwaitReady(ctx)
	}
	return fmt.Errorf("mongosim: initiate %s: no member may become primary", s.opts.SetName)
}

// electFirst makes a member stand for election until the set has a primary, this one or
// another. Its timer alone would take the election timeout, after an election that it lost too.
func (s *Set) electFirst(ctx context.Context, node *repl.Node) error {
	for {
		_ = node.StepUp(ctx) // it may lose: a voter may not have heard of the others yet
		within, cancel := context.WithTimeout(ctx, electEvery)
		_, err := s.AwaitPrimary(within)
		cancel()
		if err == nil || ctx.Err() != nil || !errors.Is(err, context.DeadlineExceeded) {
			return err
		}
	}
}

// configured reports whether every member knows the set's configuration.
func (s *Set) configured() bool {
	for _, m := range s.Members() {
		if v, ok := m.view(); ok && v.ConfigDoc == nil {
			return false
		}
	}
	return true
}

// config is the set's first configuration.
func (s *Set) config() bson.Raw {
	members := bson.A{}
	for _, m := range s.Members() {
		members = append(members, m.config())
	}
	settings := bson.D{
		{Key: "chainingAllowed", Value: true},
		{Key: "heartbeatIntervalMillis", Value: int32(s.opts.HeartbeatInterval / time.Millisecond)},
		{Key: "electionTimeoutMillis", Value: int32(s.opts.ElectionTimeout / time.Millisecond)},
	}
	if len(s.opts.WriteConcernModes) > 0 {
		settings = append(settings, bson.E{Key: "getLastErrorModes", Value: s.opts.WriteConcernModes})
	}
	return marshal(bson.D{
		{Key: "_id", Value: s.opts.SetName},
		{Key: "version", Value: int32(1)},
		{Key: "protocolVersion", Value: int64(1)},
		{Key: "members", Value: members},
		{Key: "settings", Value: settings},
	})
}

// config is the member's part of the set's configuration.
func (m *Member) config() bson.D {
	o := &m.opts
	doc := bson.D{{Key: "_id", Value: int32(m.id)}, {Key: "host", Value: m.Host()}}
	add := func(name string, value any) { doc = append(doc, bson.E{Key: name, Value: value}) }
	if o.Arbiter {
		add("arbiterOnly", true)
	}
	if o.NoIndexes {
		add("buildIndexes", false)
	}
	if o.Hidden {
		add("hidden", true)
	}
	switch {
	case o.NoPriority:
		add("priority", 0.0)
	case o.Priority > 0:
		add("priority", o.Priority)
	}
	if o.Delay > 0 {
		name := "secondaryDelaySecs"
		if m.set.opts.Dialect == "4.4" {
			name = "slaveDelay"
		}
		add(name, int64(o.Delay/time.Second))
	}
	if o.NonVoting {
		add("votes", int32(0))
	}
	if len(o.Tags) > 0 {
		add("tags", o.Tags)
	}
	return doc
}

// marshal is for documents made here, which are always valid BSON.
func marshal(doc bson.D) bson.Raw {
	raw, err := bson.Marshal(doc)
	if err != nil {
		panic("mongosim: a document that is made here is valid BSON: " + err.Error())
	}
	return raw
}

// newMember makes the next member and appends it to the members.
func (s *Set) newMember(opts MemberOptions) (*Member, error) {
	all := s.Members()
	m, err := newMember(s, len(all), opts)
	if err != nil {
		return nil, err
	}
	all = append(slices.Clip(all), m)
	s.members.Store(&all)
	return m, nil
}

// AddMember starts another member, adds it to the set's configuration, and waits until it
// is secondary, its initial sync included, or arbiter. If that fails, because the set
// refuses the configuration or ctx is done, the member keeps its place among Members,
// stopped or not yet ready.
func (s *Set) AddMember(ctx context.Context, opts MemberOptions) (*Member, error) {
	s.changing.Lock()
	defer s.changing.Unlock()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(s.ctx, func() { cancel(ErrClosed) })()
	m, err := s.addMember(ctx, opts)
	if err != nil {
		return nil, fmt.Errorf("mongosim: add a member to %s: %w", s.opts.SetName, err)
	}
	return m, nil
}

func (s *Set) addMember(ctx context.Context, opts MemberOptions) (*Member, error) {
	if err := opts.validate(); err != nil {
		return nil, err
	}
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	m, err := s.newMember(opts)
	if err != nil {
		return nil, err
	}
	if err = m.Start(); err == nil {
		err = s.reconfigure(ctx, func(members []bson.Raw) []bson.Raw {
			return append(members, marshal(m.config()))
		})
	}
	if err != nil {
		m.removed.Store(true)
		m.retire()
		return nil, err
	}
	return m, s.await(ctx, m.Host(), m.ready)
}

// RemoveMember removes a member from the set's configuration. The member keeps running, in
// state REMOVED, until it is stopped, and keeps its place among Members. A primary cannot
// be removed: it has to step down first.
func (s *Set) RemoveMember(ctx context.Context, id int) error {
	s.changing.Lock()
	defer s.changing.Unlock()
	all := s.Members()
	if id < 0 || id >= len(all) || all[id].removed.Load() {
		return fmt.Errorf("mongosim: remove member %d of %s: there is none, or it was removed", id, s.opts.SetName)
	}
	m := all[id]
	err := s.reconfigure(ctx, func(members []bson.Raw) []bson.Raw {
		return slices.DeleteFunc(members, func(doc bson.Raw) bool {
			host, _ := doc.Lookup("host").StringValueOK()
			return host == m.Host()
		})
	})
	if err != nil && m == s.Primary() {
		return fmt.Errorf("mongosim: remove member %d of %s: it is the primary, which has to step down first: %w", id, s.opts.SetName, err)
	}
	if err != nil {
		return fmt.Errorf("mongosim: remove member %d of %s: %w", id, s.opts.SetName, err)
	}
	m.removed.Store(true)
	return nil
}

// reconfigure gives the primary a configuration with other members.
func (s *Set) reconfigure(ctx context.Context, change func(members []bson.Raw) []bson.Raw) error {
	for {
		primary, err := s.AwaitPrimary(ctx)
		if err != nil {
			return err
		}
		node, err := primary.node()
		if err != nil {
			return err
		}
		doc, err := changed(node.View().ConfigDoc, change)
		if err != nil {
			return err
		}
		err = node.Reconfig(ctx, doc, false)
		// A new primary gives the configuration its term before others may be made.
		if refusal, ok := errors.AsType[*servererr.Error](err); !ok || refusal.Code != servererr.ConfigurationInProgress {
			return err
		}
		if ctx.Err() != nil {
			return err
		}
	}
}

// changed is a configuration with other members and the next version.
func changed(config bson.Raw, change func(members []bson.Raw) []bson.Raw) (bson.Raw, error) {
	var doc bson.D
	if err := bson.Unmarshal(config, &doc); err != nil {
		return nil, fmt.Errorf("read the configuration: %w", err)
	}
	for i, field := range doc {
		switch field.Key {
		case "version":
			version, _ := rawbson.Lookup(config, "version")
			n, _ := version.Int64()
			doc[i].Value = int32(n + 1)
		case "members":
			var members []bson.Raw
			if err := config.Lookup("members").Unmarshal(&members); err != nil {
				return nil, fmt.Errorf("read the members of the configuration: %w", err)
			}
			doc[i].Value = change(members)
		}
	}
	return marshal(doc), nil
}

// ready reports whether a member serves in its role; one that is down counts as
// ready.
func (m *Member) ready() bool {
	v, ok := m.view()
	return !ok || v.State.Readable() || v.State == oplog.MemberArbiter
}
