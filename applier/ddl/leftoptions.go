package ddl

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/applier/catalog"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/oplog"
)

// The options of a collection that only writes of clients depend on: nothing that the link writes is validated. A target may
// refuse the source's: a validator with an operator that only newer servers have, or with a regular expression that only older ones
// accept; the action errorAndLog before 8.1. The collection is made without them, and they are deferred until cutover.
const (
	optionValidator = "validator"
	optionAction    = "validationAction"
)

var clientsOptions = []string{optionValidator, optionAction}

// unsetOptions has, for each of clientsOptions, the value of a collection that was created without it.
var unsetOptions = fields{
	{optionValidator, documentValue(bson.Raw{rawbson.MinSize, 0, 0, 0, 0})},
	{optionAction, stringValue("error")},
}

// LeftOption is an option of a source's collection that the target refuses.
type LeftOption struct {
	// NS is the target's collection, Name that of the option.
	NS   oplog.Namespace
	Name string
}

// leftOptions returns the options of a collection that are deferred because the target refuses them.
func (h *DeferredSpec) leftOptions() (left []LeftOption) {
	for _, name := range clientsOptions {
		if h.Index == "" && slices.Contains(h.Fields, name) {
			left = append(left, LeftOption{NS: h.NS, Name: name})
		}
	}
	return left
}

// omittable returns the options that a command may have been refused for and that the target's collection need not have.
func omittable(options fields, err error) []string {
	if !refusesOption(err) {
		return nil
	}
	return options.only(slices.Concat(optional, clientsOptions)...).names()
}

// refusesOption reports whether a command may have been refused because of one of its options.
func refusesOption(err error) bool {
	return says(err, servererr.IsFeatureOff) || says(err, servererr.IsValidatorRefused)
}

// logOmitted logs each option that was left out of a command, which the target had refused with it.
func (s *step) logOmitted(ns oplog.Namespace, names []string, refused error) {
	for _, name := range names {
		if slices.Contains(clientsOptions, name) {
			s.log(slog.LevelWarn, "option that the target refuses is left out",
				slog.String(keyNS, string(ns)), slog.String(keyOption, name), slog.Any(keyError, refused))
			continue
		}
		s.logRemoved(ns, name, refused)
	}
}

// leftOut returns those of clientsOptions that a collection was created without: the target has refused them, in this attempt or in an earlier one.
// It makes those of buckets itself.
func leftOut(options fields, coll *catalog.Collection) (left fields) {
	if coll.NS.IsBuckets() {
		return nil
	}
	for _, f := range options.only(clientsOptions...) {
		unset, _ := unsetOptions.get(f.name)
		if _, has := split(coll.Options).get(f.name); !has && !f.value.Equal(unset) {
			left = append(left, f)
		}
	}
	return left
}

// changeWithout sends a collMod without the options that the target does not have, and with the values of unsetOptions for those of clientsOptions
// that it refuses, after it was recorded that they are deferred.
func (m *modification) changeWithout(ctx context.Context, d change, names []string, refused error) error {
	asked, before, err := m.send, m.options, refused
	for _, set := range omissions(names) {
		m.send, m.options = asked, before
		for _, name := range set {
			unset, is := unsetOptions.get(name)
			if !is {
				m.send = m.send.without(name)
				continue
			}
			value, _ := asked.get(name)
			m.send, m.options, m.changed = m.send.set(name, unset), m.options.set(name, value), true
		}
		if len(m.options.only(clientsOptions...)) > 0 {
			if err := m.store(ctx, m.optionsSpec()); err != nil {
				return err
			}
		}
		err = nil
		if d.rest = m.send; len(m.send) > 0 {
			_, err = m.step.send(ctx, d)
		}
		if err == nil {
			m.logOmitted(m.coll.NS, set, refused)
		}
		if !refusesOption(err) {
			break
		}
	}
	if !says(err, servererr.IsDefinitionRefused) {
		return err
	}
	// The options have nothing to do with it: the target's are as before.
	own, _ := m.deferred.find("")
	own.NS = m.coll.NS
	return cmp.Or(m.keep(ctx, &own, true), err)
}

// optionsSpec returns the deferred spec of the collection itself.
func (m *modification) optionsSpec() *DeferredSpec {
	return &DeferredSpec{NS: m.coll.NS, UUID: m.coll.UUID, Fields: m.options.names(), Spec: m.options.document()}
}

// validate gives a collection those options that the target had refused: it may have another version since.
func (c *Converter) validate(ctx context.Context, coll *catalog.Collection, h *DeferredSpec) (string, error) {
	var said []string
	spec := split(h.Spec)
	for _, f := range spec.only(clientsOptions...) {
		is, has := split(coll.Options).get(f.name)
		switch {
		case f.name == optionValidator && has, is.Equal(f.value): // by an earlier attempt, or applications have one of their own
		default:
			err := c.setOption(ctx, coll, f)
			if refusesOption(err) {
				// As with indexes: whoever cuts over has accepted that the target lacks it.
				said = append(said, fmt.Sprintf("%s is not set, as the target refuses it: %v", f.name, err))
				continue
			}
			if err != nil {
				return "", err
			}
			said = append(said, f.name+" set")
		}
		if c.Ended { // what applications change from then on stays so
			spec = spec.without(f.name)
		}
	}
	if len(spec) < len(h.Fields) {
		h.Spec, h.Fields = spec.document(), spec.names()
		if err := c.step.keep(ctx, h, true); err != nil {
			return "", err
		}
	}
	return strings.Join(said, "; "), nil
}

// invalidate reverts validate.
func (c *Converter) invalidate(ctx context.Context, coll *catalog.Collection, h *DeferredSpec) (string, error) {
	var said []string
	for _, f := range split(h.Spec).only(clientsOptions...) {
		unset, _ := unsetOptions.get(f.name)
		is, has := split(coll.Options).get(f.name)
		if !has || is.Equal(unset) {
			continue
		}
		if err := c.setOption(ctx, coll, field{f.name, unset}); err != nil {
			return "", err
		}
		said = append(said, f.name+" removed")
	}
	return strings.Join(said, "; "), nil
}

func (c *Converter) setOption(ctx context.Context, coll *catalog.Collection, option field) error {
	d := change{db: coll.NS.DB(), name: "collMod", first: coll.NS.Collection(), rest: fields{option}, coll: coll}
	if _, err := c.step.send(ctx, d); err != nil {
		return err
	}
	return c.step.cfg.Catalog.Refresh(ctx, coll.NS)
}
