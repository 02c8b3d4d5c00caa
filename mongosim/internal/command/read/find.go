package read

import (
	"context"
	"strconv"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/internal/serverquery"
	"github.com/oplogrep/replicator/mongosim/internal/command/dispatch"
	"github.com/oplogrep/replicator/oplog"
)

// FindArgs are the arguments of find.
type FindArgs struct {
	Filter, projection, Sort, Collation, let bson.Raw
	hint                                     Hint
	hinted                                   bool
	skip, limit                              int64
	BatchSize                                int64 // -1 if not given
	singleBatch, tailable, awaitData         bool
	noTimeout, recordID, token, partial      bool
	readOnce                                 bool
	// after is the record to resume after, nil if not given; its type is null for
	// the start.
	after *rawbson.Elem
	term  *int64
	// uuid is that of the collection, zero if not given.
	uuid oplog.UUID
}

var findFields = []string{
	"filter", "projection", "sort", "hint", "collation", "skip", "limit", "batchSize", "ntoreturn", "singleBatch",
	"allowDiskUse", "min", "max", "returnKey", "showRecordId", "tailable", "oplogReplay", "noCursorTimeout", "awaitData",
	"allowPartialResults", "let", "term", "readOnce", "allowSpeculativeMajorityRead", "$_requestResumeToken",
	"$_resumeAfter", "$_use44SortKeys", "runtimeConstants", "legacyRuntimeConstants", "options",
	"collectionUUID",
}

func parseFind(cmd bson.Raw) (FindArgs, error) {
	a := FindArgs{BatchSize: -1}
	read := dispatch.ArgReader("FindCommandRequest")
	err := dispatch.EachArg(cmd, func(e *rawbson.Elem) (err error) {
		switch e.Name() {
		case "filter":
			err = dispatch.OwnedObject(e, &a.Filter)
		case "projection":
			err = dispatch.OwnedObject(e, &a.projection)
		case "sort":
			err = dispatch.OwnedObject(e, &a.Sort)
		case "collation":
			err = dispatch.OwnedObject(e, &a.Collation)
		case "let":
			err = read.Object(e, &a.let)
		case "hint":
			a.hint, err = ParseHint(e)
			a.hinted = true
		case "skip":
			err = read.Count(e, &a.skip)
		case "limit":
			err = read.Count(e, &a.limit)
		case "batchSize":
			err = read.Count(e, &a.BatchSize)
		case "singleBatch":
			err = read.Bool(e, &a.singleBatch)
		case "tailable":
			err = read.Bool(e, &a.tailable)
		case "awaitData":
			err = read.Bool(e, &a.awaitData)
		case "noCursorTimeout":
			err = read.Bool(e, &a.noTimeout)
		case "showRecordId":
			err = read.Bool(e, &a.recordID)
		case "allowPartialResults":
			err = read.Bool(e, &a.partial)
		case "readOnce":
			err = read.Bool(e, &a.readOnce)
		case "$_requestResumeToken":
			err = read.Bool(e, &a.token)
		case "$_resumeAfter":
			var doc bson.Raw
			if err = dispatch.OwnedObject(e, &doc); err == nil {
				err = a.parseAfter(doc)
			}
		case "term":
			a.term = new(int64)
			err = read.Long(e, a.term)
		case "collectionUUID":
			err = a.expected(e)
		default:
			err = checkIgnored(e)
		}
		return err
	})
	if err != nil {
		return a, err
	}
	return a, a.check()
}

// checkIgnored checks the options of a find that have no effect, and refuses those that
// would.
func checkIgnored(e *rawbson.Elem) error {
	var on bool
	switch name := e.Name(); name {
	case "allowDiskUse", "oplogReplay", "allowSpeculativeMajorityRead", "$_use44SortKeys", "returnKey":
		err := dispatch.ArgReader("FindCommandRequest").Bool(e, &on)
		if err == nil && on && name == "returnKey" {
			err = servererr.New(servererr.NotImplemented, "find option returnKey is not implemented here")
		}
		return err
	case "min", "max", "ntoreturn", "runtimeConstants", "legacyRuntimeConstants", "options":
		if doc, ok := e.Document(); !ok || len(doc) > rawbson.MinSize {
			return servererr.New(servererr.NotImplemented, "find option %s is not implemented here", name)
		}
	}
	return nil
}

func (a *FindArgs) parseAfter(doc bson.Raw) error {
	if len(doc) <= rawbson.MinSize {
		return nil
	}
	it := rawbson.NewIter(doc)
	it.Next()
	e := it.Elem
	if !e.Is("$recordId") || e.Type != bson.TypeInt64 && e.Type != bson.TypeNull || it.Next() {
		return servererr.New(servererr.BadValue, "Malformed resume token: the '_resumeAfter' object must contain exactly "+
			"one field named '$recordId', of type NumberLong, BinData or jstNULL.")
	}
	a.after = &e
	return nil
}

// check refuses incompatible arguments.
func (a *FindArgs) check() error {
	bad := func(what string) error { return servererr.New(servererr.BadValue, "%s", what) }
	natural, hasNatural := rawbson.Lookup(a.Sort, "$natural")
	forward := !hasNatural && len(a.Sort) <= rawbson.MinSize
	if hasNatural {
		n, _ := dispatch.NumberArg(&natural)
		if n != 1 && n != -1 {
			return bad("$natural sort cannot be set to a value other than -1 or 1.")
		}
		only := rawbson.NewIter(a.Sort)
		only.Next()
		forward = n == 1 && !only.Next()
	}
	switch {
	case a.awaitData && !a.tailable:
		return servererr.New(servererr.FailedToParse, "Cannot set 'awaitData' without also setting 'tailable'")
	case a.tailable && !forward:
		return bad("cannot use tailable option with a sort other than {$natural: 1}")
	case a.tailable && a.singleBatch:
		return bad("cannot use tailable option with the 'singleBatch' option")
	case a.token && a.hint.Natural != 1:
		return bad("hint must be {$natural:1} if 'requestResumeToken' is enabled")
	case a.token && !forward:
		return bad("sort must be unset or {$natural:1} if 'requestResumeToken' is enabled")
	case !a.token && a.after != nil:
		return bad("'requestResumeToken' must be true if 'resumeAfter' is specified")
	}
	return refuseLet(a.let)
}

// refuseLet refuses variables, which expressions do not support here.
func refuseLet(let bson.Raw) error {
	if len(let) > rawbson.MinSize {
		return servererr.New(servererr.NotImplemented, "the argument let is not implemented here")
	}
	return nil
}

func formatInt(n int64) string { return strconv.FormatInt(n, 10) }

func runFind(ctx context.Context, r *dispatch.Request, out *dispatch.Reply) error {
	a, err := parseFind(r.Cmd)
	if err != nil {
		return err
	}
	look, at, release, err := r.ReadAt()
	if err != nil {
		return err
	}
	keep := false
	defer func() {
		if release != nil && !keep {
			release()
		}
	}()
	t, err := a.target(r, look)
	if err != nil {
		return err
	}
	if err := sawTerm(r, t.NS, a.term); err != nil {
		return err
	}
	if t.view != nil {
		keep = true
		return findOnView(ctx, r, &t, &a, pipelineArgs{look: look, at: at, release: release}, out)
	}
	f, sc, err := t.feed(&a)
	if err != nil {
		return err
	}
	if !t.exists {
		out.Buf = plainCursor(out.Buf, t.NS, 0, nil)
		return nil
	}
	if a.after != nil && a.after.Type == bson.TypeInt64 {
		record, _ := a.after.Int64()
		if err := look(func(s dispatch.Sight) error { return sc.resumeAfter(s, record) }); err != nil {
			return err
		}
	}
	c := r.NewCursor(t.NS, f)
	c.At, c.Release, keep = at, release, true
	c.Tailable, c.AwaitData, c.NoTimeout, c.Any = a.tailable, a.awaitData, a.noTimeout, sc.Any
	if a.token {
		c.Token = sc.token
	}
	limit := a.BatchSize
	if limit < 0 {
		limit = firstBatchDocs
	}
	err = openCursor(ctx, r, c, look, limit, a.singleBatch, out)
	return executorError(err, "Executor error during find command")
}

// feed compiles a find on a collection.
func (t *Target) feed(a *FindArgs) (dispatch.Feed, *scan, error) {
	collator, same, err := t.Collator(a.Collation)
	if err != nil {
		return nil, nil, err
	}
	o := serverquery.Options{Collator: collator}
	q := &Query{Filter: a.Filter, same: same, sortSpec: a.Sort, Hint: a.hint}
	if q.match, err = serverquery.Compile(a.Filter, o); err != nil {
		return nil, nil, err
	}
	projection, err := serverquery.CompileProjection(a.projection, o)
	if err != nil {
		return nil, nil, err
	}
	if q.sort, err = serverquery.CompileSort(a.Sort, o); err != nil {
		return nil, nil, err
	}
	q.Debug = func() string { return DebugQuery(t.NS, a) }
	if a.tailable && t.exists && !t.capped {
		return nil, nil, planFault(q, "tailable cursor requested on non capped collection")
	}
	sc, sorted, err := t.plan(q)
	if err != nil {
		return nil, nil, err
	}
	sh := shape{projection: projection, recordID: a.recordID}
	if order, err := t.hintedOrder(q, o); err != nil || order != nil {
		return &sortFeed{scan: sc, sort: order, shape: sh, skip: a.skip, limit: a.limit}, sc, err
	}
	if q.sort.Empty() || sorted {
		single := sc.order == byPoints && len(sc.points) == 1 && isSimpleID(a.Filter) && !a.hinted
		return &scanFeed{scan: sc, shape: sh, skip: a.skip, limit: a.limit, single: single}, sc, nil
	}
	return &sortFeed{scan: sc, sort: q.sort, shape: sh, skip: a.skip, limit: a.limit}, sc, nil
}

// hintedOrder is the order of documents in a hinted index, for a find without a
// sort; nil if no sort is needed.
func (t *Target) hintedOrder(q *Query, o serverquery.Options) (*serverquery.Sort, error) {
	if !q.sort.Empty() || q.sort.Natural() != 0 || !t.exists {
		return nil, nil
	}
	key, err := t.Forced(q)
	if key == nil || err != nil || isIDKey(key) {
		return nil, err
	}
	order, err := serverquery.CompileSort(key, o)
	if err != nil {
		return nil, servererr.New(servererr.NotImplemented, "hint at an index that is not ordered is not implemented here")
	}
	return order, nil
}

// isSimpleID reports whether a filter is {_id: value}: the server then stops after
// one document.
func isSimpleID(filter bson.Raw) bool {
	it := rawbson.NewIter(filter)
	if !it.Next() || !it.Is("_id") {
		return false
	}
	if doc, ok := it.Document(); ok {
		first := dispatch.FirstElem(doc)
		if len(first.Key) > 0 && first.Key[0] == '$' {
			return false
		}
	}
	return !it.Next()
}
