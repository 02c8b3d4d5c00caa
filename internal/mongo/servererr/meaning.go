package servererr

import (
	"errors"
	"slices"
	"strconv"
	"strings"
)

// What a code means for one command, or one way of asking, and its kind does not say.
// Each is told of an error that holds a refusal; of any other it is false.

// refusedWith reports whether a server refused with one of some codes.
func refusedWith(err error, codes ...Code) bool {
	e, ok := errors.AsType[*Error](err)
	return ok && slices.Contains(codes, e.Code)
}

// IsRefusal reports whether a server has answered, and refused.
func IsRefusal(err error) bool {
	_, ok := errors.AsType[*Error](err)
	return ok
}

// IsDenied reports whether a server refused for want of a privilege. It is not for a
// login: see Classify.
func IsDenied(err error) bool {
	e, ok := errors.AsType[*Error](err)
	return ok && e.Kind() == Auth
}

// Documents and writes.

// IsDuplicateKey reports whether a unique index has the key of another document.
func IsDuplicateKey(err error) bool { return refusedWith(err, DuplicateKey) }

// IsImmutableField reports whether an update would have changed an _id.
func IsImmutableField(err error) bool { return refusedWith(err, ImmutableField) }

// IsTooLarge reports whether a write would have made a document larger than a server
// stores: by modifiers up to 7.x, by an upsert, or otherwise.
func IsTooLarge(err error) bool {
	return refusedWith(err, updateTooLarge, upsertTooLarge, BSONObjectTooLarge)
}

// TooLarge is what a server says of a document that is too large for it.
func TooLarge(format string, args ...any) *Error { return New(BSONObjectTooLarge, format, args...) }

// KeepsCapped reports whether a server says that clients do not delete from capped
// collections. Some with the feature compatibility version 4.4 have a code of their own.
func KeepsCapped(err error) bool { return refusedWith(err, IllegalOperation, cappedDelete) }

// IsGoneTransaction reports whether a server does not know a transaction: it was given
// up for its age, or the server was not primary then.
func IsGoneTransaction(err error) bool { return refusedWith(err, NoSuchTransaction) }

// IsOldNumber reports whether a session has a newer number than that of a command: it
// has another holder.
func IsOldNumber(err error) bool { return refusedWith(err, TransactionTooOld) }

// Collections, indexes and views.

// IsNoNamespace reports whether there is no such collection.
func IsNoNamespace(err error) bool { return refusedWith(err, NamespaceNotFound) }

// IsNamespaceThere reports whether there is such a collection already.
func IsNamespaceThere(err error) bool { return refusedWith(err, NamespaceExists) }

// IsNoIndex reports whether there is no such index.
func IsNoIndex(err error) bool { return refusedWith(err, IndexNotFound) }

// IsIndexThere reports whether there is such an index already.
func IsIndexThere(err error) bool { return refusedWith(err, IndexAlreadyExists) }

// ContradictsCatalog reports whether a server has something else under a name than a
// command was about.
func ContradictsCatalog(err error) bool {
	return refusedWith(err, NamespaceNotFound, NamespaceExists, IndexNotFound, CollectionUUIDMismatch)
}

// IsIndexConflict reports whether there is an index of that name, or of that key, which
// is another one.
func IsIndexConflict(err error) bool {
	return refusedWith(err, IndexOptionsConflict, IndexKeySpecsConflict)
}

// IsNotUnique reports whether documents keep an index from being made unique.
func IsNotUnique(err error) bool { return refusedWith(err, CannotConvertIndexToUnique) }

// IsBuildAborted reports whether the building of an index was given up: for the index,
// or for what had nothing to do with it.
func IsBuildAborted(err error) bool {
	return Classify(err) == Ended && refusedWith(err, IndexBuildAborted)
}

// IsDefinitionRefused reports whether an index or a view was refused for what it is, or
// for the documents that it met, and not for the state that the server is in.
func IsDefinitionRefused(err error) bool {
	return Classify(err) == Isolate && len(labelsOf(err)) == 0 && !IsNoNamespace(err)
}

// IsViewClash reports whether a view does not go with those that are there.
func IsViewClash(err error) bool {
	return refusedWith(err, GraphContainsCycle, OptionNotSupportedOnView, ViewDepthLimitExceeded)
}

// IsInvalidView reports whether a database has a view that its server does not
// understand, and lists nothing for it.
func IsInvalidView(err error) bool { return refusedWith(err, InvalidViewDefinition) }

// IsKept reports whether a collection of the system's own cannot be dropped.
func IsKept(err error) bool { return IsDenied(err) || refusedWith(err, IllegalOperation) }

// Commands.

// IsNoCommand reports whether the server does not have the command.
func IsNoCommand(err error) bool { return refusedWith(err, CommandNotFound) }

// IsNotUnderstood reports whether the server does not know, or not accept, a field of
// the command.
func IsNotUnderstood(err error) bool {
	return refusedWith(err, unknownField, FailedToParse, BadValue, TypeMismatch, InvalidOptions)
}

// IsOptionRefused reports whether an option does not go with what is there.
func IsOptionRefused(err error) bool { return refusedWith(err, InvalidOptions) }

// IsNotInTransaction reports whether the command has to be sent outside of transactions.
func IsNotInTransaction(err error) bool {
	return refusedWith(err, OperationNotSupportedInTransaction)
}

// IsNotOffered reports whether a server will not answer the next time either: it does
// not have the command, does not offer it (Atlas), or we may not ask.
func IsNotOffered(err error) bool {
	e, ok := errors.AsType[*Error](err)
	return ok && (e.Kind() == Auth || e.Kind() == Unsupported || e.Code == notOffered)
}

// Reads.

// IsNoSample reports whether a server has met the same random documents over and over:
// as after most of a collection was deleted.
func IsNoSample(err error) bool { return refusedWith(err, noSample) }

// IsNoRecord reports whether a server does not find the record to resume at. It says so
// with the code that it also has for keys it cannot sign cluster times with.
func IsNoRecord(err error) bool {
	e, ok := errors.AsType[*Error](err)
	return ok && e.Code == KeyNotFound && strings.Contains(e.Message, "resume")
}

// IsReadFailed reports whether a read failed in a way that another cursor may not.
func IsReadFailed(err error) bool { return refusedWith(err, OperationFailed) }

// Members.

// IsNoMember reports whether a set has no such member.
func IsNoMember(err error) bool { return refusedWith(err, NodeNotFound) }

// IsQuiescing reports whether a server has begun to shut down, and still answers.
func IsQuiescing(err error) bool { return refusedWith(err, ShutdownInProgress) }

// IsOfOthers reports whether clients who know nothing of each other have to expect a
// refusal: what a command is about is gone, there, or another one by then.
func IsOfOthers(err error) bool {
	return refusedWith(err, DuplicateKey, NamespaceNotFound, NamespaceExists, IndexNotFound,
		IndexOptionsConflict, IndexKeySpecsConflict, IndexAlreadyExists, DocumentValidationFailure,
		CannotIndexParallelArrays, PathNotViable, TypeMismatch, BadValue, CommandNotSupportedOnView,
		NoSuchTransaction, OperationNotSupportedInTransaction, TransactionTooOld, CannotCreateIndex,
		IllegalOperation, InvalidOptions)
}

// KeyFault is which indexes refuse a document with a code.
type KeyFault uint8

const (
	// AnyKey is a code that stands for no kind of index.
	AnyKey KeyFault = iota
	// ParallelKey is of indexes on several fields, two of which are arrays.
	ParallelKey
	// NumberedKey is of indexes on a field with a number for a name, or an element.
	NumberedKey
	// SphereKey is of 2dsphere indexes, also on buckets.
	SphereKey
	// FlatKey is of 2d indexes.
	FlatKey
	// TextKey is of text indexes.
	TextKey
	// HashedKey is of hashed indexes.
	HashedKey
)

// String returns what an index is called that refuses so.
func (f KeyFault) String() string {
	return [...]string{"any", "parallel", "numbered", "2dsphere", "2d", "text", "hashed"}[f]
}

// keyFaults are the codes of the server's key generators (expression_keys_private.cpp,
// btree_key_generator.cpp, fts_spec.cpp).
var keyFaults = map[Code]KeyFault{
	CannotIndexParallelArrays: ParallelKey,
	16746:                     NumberedKey,
	16755:                     SphereKey, 16756: SphereKey, 183934: SphereKey,
	16804: FlatKey, 13026: FlatKey, 13027: FlatKey, 13068: FlatKey,
	17261: TextKey, 17262: TextKey,
	16766: HashedKey,
}

// KeyFaultOf returns which indexes may have refused a document.
func KeyFaultOf(err error) KeyFault {
	if e, ok := errors.AsType[*Error](err); ok {
		return keyFaults[e.Code]
	}
	return AnyKey
}

// Brief returns what tells an error apart from others, without its message: that may
// have optimes, which are never the same.
func Brief(err error) string {
	if e, ok := errors.AsType[*Error](err); ok {
		return strconv.Itoa(int(e.Code))
	}
	return ""
}

// Codes without a name that mean something here.
const (
	notOffered     Code = 8000 // of Atlas
	cappedDelete   Code = 10089
	updateTooLarge Code = 17419
	upsertTooLarge Code = 17420
	noSample       Code = 28799
	unknownField   Code = 40415 // of servers that read commands by a schema
)
