package dispatch

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/bsontext"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/rawbson"
)

// The supported fail points.
const (
	// failCommand makes commands of some names fail in a given way.
	failCommand = "failCommand"
	// FailUpgrading and failDowngrading make setFeatureCompatibilityVersion fail
	// halfway: the document stays in transition until it succeeds.
	FailUpgrading   = "failUpgrading"
	FailDowngrading = "failDowngrading"
	// HangIndexBuild makes index builds of non-empty collections wait after their start.
	HangIndexBuild = "hangAfterStartingIndexBuild"
)

// failPoints holds the state of the fail points.
type failPoints struct {
	mu   sync.Mutex
	rule *failRule
	// on are the other fail points that are set; a channel is closed when its fail point is
	// switched off.
	on map[string]chan struct{}
	// entered counts how often the rule was met, over all rules.
	entered int64
}

// failRule is what configureFailPoint has set.
type failRule struct {
	commands map[string]bool
	appName  string
	// namespace, if not empty, is that of the collection that the command must name.
	namespace string
	internal  bool
	// skip commands are let through first; then times fail, all if it is negative.
	skip, times int64
	block       time.Duration
	Failure
}

// Failure is how a command fails.
type Failure struct {
	// err is the command's error; nil if it is to continue.
	err *servererr.Error
	// HangUp closes the connection.
	HangUp bool
	// labels replace all labels of the reply if not nil.
	labels []string
	// concern is the writeConcernError of the reply of a command that writes.
	concern     bson.Raw
	concernCode servererr.Code
}

// IsOn reports whether a fail point other than failCommand is set.
func (f *failPoints) IsOn(name string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.on[name] != nil
}

// While returns a channel that is closed when a fail point is switched off, nil where it is
// off.
func (f *failPoints) While(name string) <-chan struct{} {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.on[name]
}

// set switches a fail point other than failCommand.
func (f *failPoints) set(name string, on bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.on == nil {
		f.on = map[string]chan struct{}{}
	}
	switch was := f.on[name]; {
	case on && was == nil:
		f.on[name] = make(chan struct{})
	case !on && was != nil:
		close(was)
		delete(f.on, name)
	}
}

// meet returns how the command must fail, and after which delay.
func (f *failPoints) meet(r *Request) (*Failure, time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	rule := f.rule
	if rule == nil || !rule.commands[r.Spec.Name] && !rule.commands[r.Name] {
		return nil, 0
	}
	if r.Conn.Internal && !rule.internal || rule.appName != "" && rule.appName != r.Conn.appName() {
		return nil, 0
	}
	if rule.namespace != "" && rule.namespace != r.namespace() {
		return nil, 0
	}
	if rule.concern != nil && !r.Spec.Writes {
		return nil, 0
	}
	if rule.skip > 0 {
		rule.skip--
		return nil, 0
	}
	if rule.times == 0 {
		return nil, 0
	}
	if rule.times > 0 {
		rule.times--
	}
	f.entered++
	return &rule.Failure, rule.block
}

// namespace is that of the collection that the command names first, or the database.
func (r *Request) namespace() string {
	first, _ := rawbson.Lookup(r.Cmd, r.Name)
	if coll, ok := first.Text(); ok {
		return r.DB + "." + coll
	}
	return r.DB
}

// appName is the name of the application that the client's handshake gave.
func (c *Conn) appName() string {
	application, _ := rawbson.Lookup(c.Metadata, "application")
	doc, _ := application.Document()
	name, _ := rawbson.Lookup(doc, "name")
	text, _ := name.Text()
	return text
}

// meetFailPoint makes the command fail if a fail point is set for it.
func (r *Request) meetFailPoint(ctx context.Context) error {
	f, block := r.Server.Fails.meet(r)
	if f == nil {
		return nil
	}
	if block > 0 {
		timer := time.NewTimer(block)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-ctx.Done():
			return Interrupted(ctx)
		}
	}
	r.Failing = f
	switch {
	case f.HangUp:
		return servererr.New(servererr.Interrupted, "the connection is closed by a fail point")
	case f.err != nil:
		return f.err
	}
	return nil
}

func failPointSpecs() []Spec {
	return []Spec{{
		Name: "configureFailPoint", Fields: []string{"mode", "data"}, AdminOnly: true, Secondary: AnyMember,
		Run: runConfigureFailPoint, Test: true,
	}}
}

func runConfigureFailPoint(_ context.Context, r *Request, out *Reply) error {
	first, _ := rawbson.Lookup(r.Cmd, r.Name)
	name, ok := first.Text()
	if !ok {
		return WrongType(r.Spec.Name, r.Name, first.Type, "string")
	}
	known := []string{failCommand, FailUpgrading, FailDowngrading, HangIndexBuild}
	if !slices.Contains(known, name) {
		return servererr.New(servererr.NotImplemented, "fail point %s is not implemented here, only %s are",
			name, strings.Join(known, ", "))
	}
	mode, ok := rawbson.Lookup(r.Cmd, "mode")
	if !ok {
		return MissingField(r.Spec.Name, "mode")
	}
	rule := &failRule{times: -1}
	off := false
	if text, ok := mode.Text(); ok {
		switch text {
		case "off":
			off = true
		case "alwaysOn":
		default:
			return servererr.New(servererr.BadValue, "unknown mode: %s", text)
		}
	} else if err := rule.parseMode(&mode); err != nil {
		return err
	}
	if name != failCommand {
		if rule.times >= 0 || rule.skip > 0 {
			return servererr.New(servererr.NotImplemented, "fail point %s can be off or alwaysOn here", name)
		}
		r.Server.Fails.set(name, !off)
		out.Buf = bsoncore.AppendInt32Element(out.Buf, "count", 0)
		return nil
	}
	data, _ := rawbson.Lookup(r.Cmd, "data")
	if doc, ok := data.Document(); ok {
		if err := rule.parse(doc); err != nil {
			return err
		}
	}
	f := &r.Server.Fails
	f.mu.Lock()
	defer f.mu.Unlock()
	out.Buf = bsoncore.AppendInt32Element(out.Buf, "count", int32(f.entered))
	if f.rule = rule; off {
		f.rule = nil
	}
	return nil
}

func (rule *failRule) parseMode(mode *rawbson.Elem) error {
	doc, ok := mode.Document()
	if !ok {
		return servererr.New(servererr.TypeMismatch, "'mode' must be a string or JSON object")
	}
	it := rawbson.NewIter(doc)
	for it.Next() {
		n, ok := it.Int64()
		if !ok || n < 0 {
			return servererr.New(servererr.BadValue, "'%s' option to 'mode' must be a number that is not negative", it.Name())
		}
		switch it.Name() {
		case "times":
			rule.times = n
		case "skip":
			rule.skip = n
		default:
			return servererr.New(servererr.NotImplemented, "mode %s of fail points is not implemented here", it.Name())
		}
	}
	return nil
}

func (rule *failRule) parse(data bson.Raw) error {
	var code servererr.Code
	extra := false
	it := rawbson.NewIter(data)
	for it.Next() {
		var ok bool
		switch it.Name() {
		case "failCommands":
			var names []string
			names, ok = texts(&it.Elem)
			rule.commands = map[string]bool{}
			for _, name := range names {
				rule.commands[name] = true
			}
		case "errorCode":
			var n int64
			n, ok = it.Int64()
			code = servererr.Code(n)
		case "closeConnection":
			rule.HangUp, ok = it.Bool()
		case "failInternalCommands":
			rule.internal, ok = it.Bool()
		case "blockConnection":
			extra, ok = it.Bool()
		case "blockTimeMS":
			var n int64
			n, ok = it.Int64()
			rule.block = time.Duration(n) * time.Millisecond
		case "appName":
			ok = cloned(&rule.appName, &it.Elem)
		case "namespace":
			ok = cloned(&rule.namespace, &it.Elem)
		case "errorLabels":
			rule.labels, ok = texts(&it.Elem)
		case "writeConcernError":
			doc, isDoc := it.Document()
			ok = isDoc
			rule.concern = append(bson.Raw(nil), doc...)
			field, _ := rawbson.Lookup(doc, "code")
			n, _ := field.Int64()
			rule.concernCode = servererr.Code(n)
			if labels, has := rawbson.Lookup(doc, "errorLabels"); has && ok {
				rule.labels, ok = texts(&labels)
			}
		default:
			return servererr.New(servererr.NotImplemented, "option %s of %s is not implemented here", it.Name(), failCommand)
		}
		if !ok {
			return servererr.New(servererr.TypeMismatch, "option %s of %s has the wrong type %s", it.Name(), failCommand, bsontext.TypeName(it.Type))
		}
	}
	if !extra {
		rule.block = 0
	}
	if code != 0 {
		rule.err = servererr.New(code, "Failing command via 'failCommand' failpoint")
	}
	return nil
}

// cloned sets a text to that of an element, and reports whether it is one.
func cloned(to *string, e *rawbson.Elem) bool {
	text, ok := e.Text()
	*to = strings.Clone(text)
	return ok
}

// texts reads an array of strings. It is not nil even if it is empty.
func texts(e *rawbson.Elem) ([]string, bool) {
	array, ok := e.Array()
	list := []string{}
	it := rawbson.NewIter(array)
	for ok && it.Next() {
		var text string
		text, ok = it.Text()
		list = append(list, strings.Clone(text))
	}
	return list, ok
}
