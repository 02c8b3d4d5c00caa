// Package ddl executes the log's DDL on the target: commands, and writes to
// system.views. They are processed individually: the caller has applied everything
// before the operation, and applies nothing after it meanwhile.
//
// # Names
//
// The log identifies the collection of a command twice: by its name at that time, and
// by its UUID. The target's collections have UUIDs of their own, so commands are applied
// by name. That is right if the target is exactly what the log describes: everything
// before has been applied, renames included, so a name stands for the same collection as
// at the source.
//
// A copy that was taken while writes went on may be ahead of the log, and a name
// in it may already be that of another collection. What the server's own members
// tolerate then is tolerated here too: a collection to create that exists, one to
// drop that does not, a rename that has happened. Two things are not taken from
// names there. A rename over a collection that both names have is carried out
// only where the collection to rename is known to be the one meant: because the
// log made it, or because nothing else ever has its name; otherwise it is a
// [ResyncError]. And where a rename finds neither name, the collection after it
// was not copied, or is gone again by the end of the copy: [Executor.Owed] lists
// those, and the copy does not end while one is missing. They are noted in the metadata,
// in "missing", before the log goes on.
//
// # Placed
//
// A copy that was made under the names that the log begins with ([Config.Placed])
// can be followed by name exactly: what is newer in it are documents, options,
// indexes, and views, and what is missing the source has dropped since. So a
// rename over a collection is carried out, whatever had the name; a rename of what
// is missing takes away what it would have replaced, and nothing has the new name
// then, until the log drops that too. Whether the one or the other has happened
// cannot be told from the names afterwards, so the collection that is to replace
// another is noted in the metadata, in "renames", before it is renamed. Where the
// log has a collection and the copy a view, the view is of a later time, and is
// made again by the log; the other way round the target has diverged.
//
// Indexes that later documents do not allow are an [IndexError]; the log drops
// them, or changes the documents: [Executor.HoldIndex] keeps them until then. A
// granularity that is coarser already, and views that do not go with later ones,
// are passed over.
//
// # Again
//
//	Once     the target must be as the log expects it: else DivergedError
//	Maybe    the same command may have been carried out already, as a whole or
//	         in part, and nothing after it: what it would make may be there,
//	         what it would remove may be gone
//	Copied   the target may be ahead of the log: all that, and what is said above
//
// Each command is a sequence of idempotent steps: first the command on the target, then
// what the metadata keeps about it. Everything is written with write concern majority.
// While the target refuses a command because of other work on the collection, it is
// retried. Under Maybe and Copied, a refusal that contradicts the catalog makes the
// executor read the target again, because a command of an earlier attempt may take effect
// only then. Every other error is returned; the next attempt calls with Maybe and a new
// catalog.
//
// # Fenced
//
// A DDL command cannot be fenced as writes are: it carries no transaction number that a
// server would refuse. Everything that changes the target goes through a gate. The gate
// checks the [Fence] before each try, names the collection by UUID where the server
// accepts one and otherwise looks it up right before, limits how long the server may
// work, and checks the fence again afterwards: a command that was late nevertheless is a
// [LateError]. What can be in a transaction is in one.
//
//	     busy, sent too late
//	   ┌─────────────────────┐
//	   ▼                     │
//	look ──▶ Check ──▶ send ─┴─▶ Check ──▶ done
//	           │                   │
//	           ▼ lost              ▼ lost
//	         not sent           LateError
//
// docs/fencing.md has what that covers, command by command, and what is left.
//
// # Deferred options
//
// Some of what a collection has at the source must not work on the target before
// cutover:
//
//	expireAfterSeconds     the deletes come through the log; the target's own
//	                       would come at other times
//	temp                   the source's drops come through the log; a client
//	                       cannot set it either
//	unique, prepareUnique  (Relaxed, or under Copied) lanes that write concurrently
//	                       would meet duplicates that never existed, and so would
//	                       documents of a copy, each of another time
//
// They are left out on the target and kept in the collection "deferred" of the
// metadata database, one document for an index or (index: "") a collection:
//
//	{_id: {link, ns, index}, uuid, held: [names], absent, spec: binary BSON}
//
// ns is the target's name, uuid the target's collection, spec the whole index as
// the source has it, or the collection's options that are held. It is binary,
// since servers up to 4.4 do not store field names that begin with a dollar. An
// index that without its uniqueness would be equal to another one cannot be
// built: it is absent, and is built once that one is dropped. So is one that was
// held because it could not be built, when any other is dropped. [Held] reads them
// all, and [Specs.Overlay] shows a collection as the source has it.
//
// # Deferred indexes
//
// Over a copy a document may be for a while what an index refuses, though the source
// never had it. The applier then drops the index ([Executor.DeferIndexes]), which is
// noted as absent before, and [Executor.EndCopy] builds what is absent once everything
// up to the end of the copy is in the target. One that is unique is never deferred:
// over a copy none is.
//
// An index without a collation compares byte by byte. Of a collection that has a
// collation it is asked for with {locale: "simple"}, as a client's command would
// inherit the collection's; what is kept is the index as it is logged or listed.
//
// # Scope
//
// A rename out of what is mirrored drops the collection. A rename into it needs
// data that was never copied and is a [ResyncError], as is a rename that the
// renames of --map send to another database. A view keeps its name for what it
// reads if that is the same on the target; viewOn is mapped within a database;
// everything else is an error that names the view.
//
// A definition that the source itself cannot use is left out, and so is one that the
// target refused when it was copied. It is kept whole, in "deferred" ([LeftView]): the log
// may change a part of it only, and whoever has the link can say that it is left out.
//
// # Time series
//
// A time-series collection X is logged as system.buckets.X and a view X. A client
// makes, changes and drops both through X, so the entries of the buckets do that,
// and those of the view do nothing, unless only it is there. Indexes go to the
// buckets, as the log has them: the one that servers since 6.3 make by themselves is
// dropped again.
//
// The package trusts that nothing else changes the target's collections, and that the
// whole attempt uses the catalog that it is given.
package ddl
