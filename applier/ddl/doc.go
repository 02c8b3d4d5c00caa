// Package ddl executes the log's DDL on the target: commands, and writes to
// system.views. They are processed individually: the caller has applied everything
// before the operation, and applies nothing after it until it has returned.
//
// # Names
//
// The log identifies the collection of a command twice: by its name at that time, and
// by its UUID. The target's collections have other UUIDs, so commands are applied by
// name. That is correct if the target's state is exactly that before the command: all
// earlier entries have been applied, renames included, so a name means the same
// collection as at the source.
//
// A copy that was taken during writes may be ahead of the log, and a name in it may
// already be that of another collection. As in a server's initial sync, a create of an
// existing collection, a drop of a missing one and a rename that has already happened
// are ignored. In two cases names are not sufficient:
//
//   - A rename from one existing collection to another (dropTarget) is executed only if
//     the renamed collection is certainly the right one, because the log created it or
//     because no other collection ever has its name. Otherwise it is a [ResyncError].
//   - If neither name of a rename exists, the collection was not copied, or the source
//     drops it before the end of the copy. [Executor.Missing] lists these collections, and
//     the copy does not end while one is missing. They are recorded in the metadata, in
//     "missing", before the next operation.
//
// # Copies with the names at Begin
//
// If the copy's collections have the names as of the start of the log
// ([Config.Placed]), commands can be applied by name exactly: only documents, options,
// indexes and views may be newer, and a collection that is missing was dropped by the
// source later. So a rename over a collection is always executed. A rename of a missing
// collection drops the one that it would have replaced, and the new name stays unused
// until the log drops it. After a crash the names do not show whether a rename has
// happened, so the collection that replaces another is recorded in the metadata, in
// "renames", before it is renamed. If the log has a collection where the copy has a
// view, the view is newer and the log creates it again; the inverse is a divergence.
//
// An index that newer documents do not allow is an [IndexError]; the log will drop it or
// change the documents, and [Executor.DeferBuild] defers it until then. A granularity that
// is already coarser, and views that conflict with newer ones, are ignored.
//
// # Modes
//
//	Once     the target must be as the log expects it: else DivergedError
//	Maybe    the same command may have been executed already, completely or
//	         in part, but none after it: its result may exist, the
//	         collection or index that it removes may be gone
//	Copied   the target may be ahead of the log, as described above
//
// Each command is a sequence of idempotent steps: first the command on the target, then
// the metadata about it. Everything is written with write concern majority. While the
// target refuses a command because of other work on the collection, it is retried. Under
// Maybe and Copied, a refusal that contradicts the catalog makes the executor read the
// target again, because a command of an earlier attempt may take effect late. Every
// other error is returned; the next attempt calls with Maybe and a new catalog.
//
// # Fencing
//
// A DDL command cannot be fenced as writes are: it has no transaction number that a
// server would refuse. Everything that changes the target goes through a gate. The gate
// checks the [Fence] before each try, names the collection by UUID where the server
// accepts one and otherwise looks it up immediately before, limits the execution time,
// and checks the fence again afterwards: a command that was late nevertheless is a
// [LateError]. Steps that can be in a transaction are in one.
//
//	     busy, sent too late
//	   ┌─────────────────────┐
//	   ▼                     │
//	look ──▶ Check ──▶ send ─┴─▶ Check ──▶ done
//	           │                   │
//	           ▼ lost              ▼ lost
//	         not sent           LateError
//
// docs/fencing.md lists the protection of each command, and the remaining cases.
//
// # Deferred options
//
// Some options must not take effect on the target before cutover:
//
//	expireAfterSeconds     the deletes come through the log; the target's own
//	                       would come at other times
//	temp                   the source's drops come through the log; a client
//	                       cannot set it either
//	unique, prepareUnique  (Relaxed, or under Copied) lanes that write concurrently
//	                       would cause duplicates that never existed at the source,
//	                       and so would documents that are copied at different times
//
// They are left out on the target and stored in the collection "deferred" of the
// metadata database, one document for each index and (index: "") each collection:
//
//	{_id: {link, ns, index}, uuid, deferred: [names], absent, ofDocuments, spec: binary BSON}
//
// ns is the target's name, uuid that of the target's collection, deferred the names of the
// deferred options, and spec the whole index specification of the source, or the
// collection's deferred options. It is binary, because servers up to 4.4 do not store
// field names that begin with a dollar. An index that without its uniqueness equals
// another one cannot be built: it is absent, and is built once the other one is dropped.
// An index that was deferred because it could not be built is tried again when any other
// is dropped, unless the documents are the reason (ofDocuments). [ReadDeferred] reads all documents, and [Specs.Overlay] returns a collection's
// options and indexes as at the source.
//
// A validator or a validationAction that the target refuses is deferred, too, at any time: only writes of clients depend on it. A
// validator in its place is removed, after it was recorded that the target lacks the new one. [ReadLacking] lists them
// ([LeftOption]), and [Converter] tries them again.
//
// # Deferred indexes
//
// While the log is applied to a copy, an index may temporarily refuse a document that the
// source never had in that form. The applier then drops the index
// ([Executor.DeferIndexes]), after it was recorded as absent, and [Executor.EndCopy] builds
// all absent indexes once everything up to the end of the copy is applied. Uniqueness is
// never the reason: under Copied no index is unique.
//
// An index whose definition the target refuses is absent, too, at any time: no attempt could
// pass its command. So is one that cannot contain a document, as the target's version refuses
// what the source's accepts, or that needs more memory than the target allows for a build.
//
// # Index builds
//
// A build of indexes that accept every document begins on the target with the log's
// startIndexBuild ([Executor.HeadStart]). The commit builds the missing ones, the abort
// drops those that exist.
//
// On a collection with a collation, an index without one is created with {locale:
// "simple"}, because a client's command would inherit the collection's; the metadata have
// the index as it was logged or listed.
//
// # Scope
//
// A rename out of the mirrored namespaces drops the collection. A rename into them needs
// data that were never copied and is a [ResyncError], as is a rename that --map would turn
// into one to another database. The collections that a view reads must have the same name
// on the target, except viewOn, which is mapped within a database; otherwise it is an error
// that names the view.
//
// A view whose definition is invalid at the source is left out, and so is one that the
// target refuses because of its definition, at any time. The whole definition is stored in "deferred"
// ([LeftView]), because the log may change only a part of it, and so that the status can
// report it.
//
// # Time series
//
// A time-series collection X is logged as system.buckets.X and a view X. A client
// creates, changes and drops both through X, so the entries of the buckets do that,
// and those of the view do nothing, unless only the view exists. Indexes are created on
// the buckets, as logged: the one that servers since 6.3 create by default is dropped.
// A $out into X renames other buckets to those of X, in the log and on the target. A target
// that refuses this, as one before 7.0.3, needs X to be copied: a [ResyncError].
//
// # Trust
//
// Nothing else changes the target's collections, and the whole attempt uses the catalog
// that the package is given.
package ddl
