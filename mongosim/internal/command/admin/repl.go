package admin

import (
	"bytes"
	"context"
	"math"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/bsontext"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/mongosim/internal/command/dispatch"
)

func runReplSetGetStatus(_ context.Context, r *dispatch.Request, out *dispatch.Reply) error {
	status, err := r.Server.Config.Node.Status()
	if err != nil {
		return err
	}
	out.Buf = dispatch.AppendFields(out.Buf, status)
	return nil
}

// runReplSetGetConfig answers with the configuration and, on a primary that is
// asked for it, whether a majority has it.
func runReplSetGetConfig(_ context.Context, r *dispatch.Request, out *dispatch.Reply) error {
	v := r.Server.Config.Node.View()
	if v.ConfigDoc == nil {
		return servererr.New(servererr.NotYetInitialized, "no replset config has been received")
	}
	asked := dispatch.FlagOf(r.Cmd, "commitmentStatus")
	if asked && !v.Writable {
		return servererr.New(servererr.NotWritablePrimary, "commitmentStatus is only supported on primary.")
	}
	out.Buf = bsoncore.AppendDocumentElement(out.Buf, "config", v.ConfigDoc)
	if !asked {
		return nil
	}
	status, err := r.Server.Config.Node.Status()
	if err != nil {
		return err
	}
	have, voters := 0, 0
	for i := range v.Members {
		voters += v.Members[i].Votes
		if i == v.Self || configOf(status, i) == [2]int64{v.ConfigVersion, v.ConfigTerm} {
			have += v.Members[i].Votes
		}
	}
	out.Buf = bsoncore.AppendBooleanElement(out.Buf, "commitmentStatus", have > voters/2)
	return nil
}

// configOf returns version and term of the configuration that a member was last
// heard to have.
func configOf(status bson.Raw, member int) [2]int64 {
	list, _ := rawbson.Lookup(status, "members")
	array, _ := list.Array()
	e, _ := rawbson.Lookup(array, dispatch.ArrayKey(member))
	doc, _ := e.Document()
	version, _ := rawbson.Lookup(doc, "configVersion")
	term, _ := rawbson.Lookup(doc, "configTerm")
	v, _ := version.Int64()
	t, _ := term.Int64()
	return [2]int64{v, t}
}

func runReplSetInitiate(ctx context.Context, r *dispatch.Request, out *dispatch.Reply) error {
	first := dispatch.FirstElem(r.Cmd)
	config, isDoc := first.Document()
	if !isDoc && first.Type != bson.TypeNull && first.Type != bson.TypeUndefined && !first.Truth() {
		return servererr.New(servererr.TypeMismatch, "Expected field \"replSetInitiate\" to be of type object")
	}
	if !isDoc || len(config) <= rawbson.MinSize {
		out.Buf = bsoncore.AppendStringElement(out.Buf, "info2", "no configuration specified. Using a default configuration for the set")
		out.Buf = bsoncore.AppendStringElement(out.Buf, "me", r.Server.Config.Host)
		config = dispatch.EmptyDocument
	} else if _, ok := rawbson.Lookup(config, "version"); !ok {
		// As the server's command does, so that a set can be initiated in few words.
		i, dst := bsoncore.AppendDocumentStart(nil)
		dst = bsoncore.AppendInt32Element(dispatch.AppendFields(dst, config), "version", 1)
		config, _ = bsoncore.AppendDocumentEnd(dst, i)
	}
	return r.Server.Config.Node.Initiate(ctx, bytes.Clone(config))
}

func runReplSetReconfig(ctx context.Context, r *dispatch.Request, _ *dispatch.Reply) error {
	first := dispatch.FirstElem(r.Cmd)
	config, ok := first.Document()
	if !ok {
		return servererr.New(servererr.BadValue, "no configuration specified")
	}
	return r.Server.Config.Node.Reconfig(ctx, bytes.Clone(config), dispatch.FlagOf(r.Cmd, "force"))
}

// The server's periods of replSetStepDown where the command has none, in seconds.
const (
	defaultStepDownSecs = 60
	defaultCatchUpSecs  = 10
)

func runReplSetStepDown(ctx context.Context, r *dispatch.Request, _ *dispatch.Reply) error {
	secs, err := secondsOf(r.Cmd, r.Name, 0)
	if err != nil {
		return err
	}
	force := dispatch.FlagOf(r.Cmd, "force")
	if secs == 0 {
		secs = defaultStepDownSecs
	} else if secs < 0 {
		return servererr.New(servererr.BadValue, "stepdown period must be a positive integer")
	}
	catchUp := int64(defaultCatchUpSecs)
	if force {
		catchUp = 0
	}
	if catchUp, err = secondsOf(r.Cmd, "secondaryCatchUpPeriodSecs", catchUp); err != nil {
		return err
	}
	switch {
	case catchUp < 0:
		return servererr.New(servererr.BadValue, "secondaryCatchUpPeriodSecs period must be a positive or absent")
	case secs < catchUp:
		return servererr.New(servererr.BadValue, "stepdown period must be longer than secondaryCatchUpPeriodSecs")
	}
	return r.Server.Config.Node.StepDown(ctx, seconds(secs), seconds(catchUp), force)
}

// secondsOf reads a number of seconds.
func secondsOf(cmd bson.Raw, name string, def int64) (int64, error) {
	e, ok := rawbson.Lookup(cmd, name)
	if !ok || e.Type == bson.TypeNull {
		return def, nil
	}
	if b, isBool := e.Bool(); isBool && b { // {replSetStepDown: true}
		return def, nil
	}
	n, ok := dispatch.NumberArg(&e)
	if !ok {
		return 0, servererr.New(servererr.TypeMismatch, "Expected field \"%s\" to have numeric type, but found %s", name, bsontext.TypeName(e.Type))
	}
	return n, nil
}

// seconds is a Duration of at most the range of the server's periods.
func seconds(n int64) time.Duration { return time.Duration(min(n, math.MaxInt32)) * time.Second }

func runReplSetStepUp(ctx context.Context, r *dispatch.Request, _ *dispatch.Reply) error {
	return r.Server.Config.Node.StepUp(ctx)
}

func runReplSetFreeze(_ context.Context, r *dispatch.Request, out *dispatch.Reply) error {
	secs, err := secondsOf(r.Cmd, r.Name, 0)
	if err != nil {
		return err
	}
	if secs < 0 {
		return servererr.New(servererr.BadValue, "replSetFreeze: the period must not be negative")
	}
	if err := r.Server.Config.Node.Freeze(seconds(secs)); err != nil {
		return err
	}
	switch secs {
	case 0:
		out.Buf = bsoncore.AppendStringElement(out.Buf, "info", "unfreezing")
	case 1:
		out.Buf = bsoncore.AppendStringElement(out.Buf, "warning", "you really want to freeze for only 1 second?")
	}
	return nil
}
