package servererr

import (
	"errors"
	"slices"
	"strconv"
	"strings"
)

// The functions below return what a code means for a certain command, beyond its kind.
// They return false for errors that do not wrap an *Error.

// refusedWith reports whether err is a server's error with one of some codes.
func refusedWith(err error, codes ...Code) bool {
	e, ok := errors.AsType[*Error](err)
	return ok && slices.Contains(codes, e.Code)
}

// IsRefusal reports whether err is a server's error.
func IsRefusal(err error) bool {
	_, ok := errors.AsType[*Error](err)
	return ok
}

// IsDenied reports whether the user lacks a privilege. For authentication errors see
// Classify.
func IsDenied(err error) bool {
	e, ok := errors.AsType[*Error](err)
	return ok && e.Kind() == Auth
}

// IsWriteBlock reports whether the server refused a write because writes of users are blocked.
func IsWriteBlock(err error) bool { return refusedWith(err, UserWritesBlocked) }

// SaysWriteBlock reports whether the text of an error is one of such a refusal, where the error itself was not kept.
func SaysWriteBlock(text string) bool { return strings.Contains(text, UserWritesBlocked.String()) }

// Reads at an earlier time.

// IsSnapshotTooOld reports whether the server no longer has the time that a read names.
func IsSnapshotTooOld(err error) bool { return refusedWith(err, SnapshotTooOld) }

// IsSnapshotUnavailable reports whether a collection cannot be read at a time, or not at that one:
// it is capped, or was made, renamed or changed since.
func IsSnapshotUnavailable(err error) bool { return refusedWith(err, SnapshotUnavailable) }

// Documents and writes.

// IsDuplicateKey reports whether a unique index has the key of another document.
func IsDuplicateKey(err error) bool { return refusedWith(err, DuplicateKey) }

// IsImmutableField reports whether an update would have changed an _id.
func IsImmutableField(err error) bool { return refusedWith(err, ImmutableField) }

// IsTooLarge reports whether a write would have exceeded the maximum size of a document:
// by modifiers (up to 7.x), by an upsert, or otherwise.
func IsTooLarge(err error) bool {
	return refusedWith(err, updateTooLarge, upsertTooLarge, BSONObjectTooLarge)
}

// IsDollarName reports whether an update would have made a document with a name that starts with a dollar, where the server
// accepts that in inserts only, if at all. It takes $ref, $id and $db for those of a reference to a document.
func IsDollarName(err error) bool { return refusedWith(err, DollarPrefixedFieldName, InvalidDBRef) }

// IsTooLargeForCache reports whether the server's storage cache is too small for a transaction.
func IsTooLargeForCache(err error) bool { return refusedWith(err, TransactionTooLargeForCache) }

// TooLarge returns the error of a server for a document that is too large.
func TooLarge(format string, args ...any) *Error { return New(BSONObjectTooLarge, format, args...) }

// KeepsCapped reports whether a server rejected a delete from a capped collection. Some
// servers with the feature compatibility version 4.4 have a code of their own for it.
func KeepsCapped(err error) bool { return refusedWith(err, IllegalOperation, cappedDelete) }

// IsCappedSize reports whether a server refused an update because it would have changed the size of a document of a capped
// collection, as servers before 5.3 do (CannotGrowDocumentInCappedNamespace).
func IsCappedSize(err error) bool { return refusedWith(err, cappedSize) }

// IsMixedBucket reports whether a server refused a bucket of a time series that has values of
// several types in one field: those that were made before 5.2 may have them, and collMod says so
// (onInserts and onUpdate in timeseries_op_observer.cpp, from 6.0.13 and 7.0.6 on).
func IsMixedBucket(err error) bool { return refusedWith(err, MixedSchemaBuckets) }

// IsGoneTransaction reports whether a server does not know a transaction: it was aborted
// for its age, or the server was not primary then.
func IsGoneTransaction(err error) bool { return refusedWith(err, NoSuchTransaction) }

// IsOfUsers reports whether the user or role of a command is not there, or is there already.
func IsOfUsers(err error) bool {
	return refusedWith(err, UserNotFound, RoleNotFound, roleExists, userExists)
}

// IsOldNumber reports whether a session has a newer transaction number than that of a
// command: another process uses it.
func IsOldNumber(err error) bool { return refusedWith(err, TransactionTooOld) }

// IsConcernTimeout reports whether the error of a write concern says that it was not satisfied
// within its time limit, or that of the command. It may be later.
func IsConcernTimeout(err error) bool { return refusedWith(err, WriteConcernTimeout, MaxTimeMSExpired) }

// HasNoMajorityReads reports whether a server does not read with read concern majority: one before 5.0 that was started with
// enableMajorityReadConcern: false.
func HasNoMajorityReads(err error) bool { return refusedWith(err, ReadConcernMajorityNotEnabled) }

// Collections, indexes and views.

// IsNoNamespace reports whether the collection does not exist.
func IsNoNamespace(err error) bool { return refusedWith(err, NamespaceNotFound) }

// IsNamespaceThere reports whether the collection exists already.
func IsNamespaceThere(err error) bool { return refusedWith(err, NamespaceExists) }

// IsNoIndex reports whether the index does not exist.
func IsNoIndex(err error) bool { return refusedWith(err, IndexNotFound) }

// IsIndexThere reports whether the index exists already.
func IsIndexThere(err error) bool { return refusedWith(err, IndexAlreadyExists) }

// ContradictsCatalog reports whether the command does not match the server's catalog: its
// object does not exist, or another one has the name or UUID.
func ContradictsCatalog(err error) bool {
	return refusedWith(err, NamespaceNotFound, NamespaceExists, IndexNotFound, CollectionUUIDMismatch)
}

// IsOtherCollection reports whether another collection than the command expects has the name, or none has.
func IsOtherCollection(err error) bool { return refusedWith(err, CollectionUUIDMismatch) }

// IsIndexConflict reports whether a different index has the same name or key.
func IsIndexConflict(err error) bool {
	return refusedWith(err, IndexOptionsConflict, IndexKeySpecsConflict)
}

// IsUnknownIndexOption reports whether a server does not know an option of an index.
func IsUnknownIndexOption(err error) bool { return refusedWith(err, InvalidIndexSpecificationOption) }

// IsIndexRefused reports whether a server does not build such indexes: of that type, on such fields, or with such options, or values
// of them (validateIndexSpec in index_key_validate.cpp). A server without commit quorums, which refuses any index that is to have one, has
// BadValue for that, too.
func IsIndexRefused(err error) bool {
	if e, ok := errors.AsType[*Error](err); ok && e.Code == BadValue && strings.Contains(e.Message, "commitQuorum") {
		return false
	}
	return refusedWith(err, CannotCreateIndex, InvalidOptions, InvalidIndexSpecificationOption, BadValue, TypeMismatch, FailedToParse, QueryFeatureNotAllowed)
}

// IsBuildTooLarge reports whether the index builds of a command, together, need more memory than the server allows them
// (maxIndexBuildMemoryUsageMegabytes), for one document or for what it notes about all of them. With the same documents they do again.
func IsBuildTooLarge(err error) bool { return refusedWith(err, ExceededMemoryLimit) }

// IsQuorumUnsatisfiable reports whether the set has too few members that build indexes for a commit quorum: arbiters and members with
// buildIndexes: false do not count (checkIfCommitQuorumCanBeSatisfied).
func IsQuorumUnsatisfiable(err error) bool { return refusedWith(err, UnsatisfiableCommitQuorum) }

// IsNameRefused reports whether a server does not accept the name of a collection, as it has a database whose name differs in case
// only, or as the name is too long.
func IsNameRefused(err error) bool { return refusedWith(err, databaseDifferCase, InvalidNamespace) }

// IsReservedIndex reports whether a server may have refused an index because only the server itself makes one of that
// type. It has the same codes for other reasons.
func IsReservedIndex(err error) bool {
	return refusedWith(err, CannotCreateIndex, IndexOptionsConflict)
}

// IsNotUnique reports whether an index cannot become unique because of existing
// documents.
func IsNotUnique(err error) bool { return refusedWith(err, CannotConvertIndexToUnique) }

// IsIndexModified reports whether a collMod has made no index unique because the index was changed meanwhile: the server asks for the
// command again (_collModInternal in coll_mod.cpp).
func IsIndexModified(err error) bool {
	e, ok := errors.AsType[*Error](err)
	return ok && e.Code == CommandFailed && strings.Contains(e.Message, "modified by another thread")
}

// IsBuildAborted reports whether an index build was aborted, because of the index or for
// an unrelated reason.
func IsBuildAborted(err error) bool {
	return Classify(err) == Ended && refusedWith(err, IndexBuildAborted)
}

// IsBuilding reports whether an index build of the collection, which may be of another
// index, is in the way of the command.
func IsBuilding(err error) bool { return refusedWith(err, BackgroundOperationInProgressForNamespace) }

// IsDefinitionRefused reports whether a server rejected an index, a view or a validator because of its
// definition, or of existing documents, and not because of the server's state.
func IsDefinitionRefused(err error) bool {
	return Classify(err) == Isolate && len(labelsOf(err)) == 0 && !IsNoNamespace(err)
}

// IsIndexUnbuildable reports whether a server does not build an index because of its definition, or of existing documents, and not
// because of another index, its catalog or a fault.
func IsIndexUnbuildable(err error) bool {
	return IsBuildTooLarge(err) || IsDefinitionRefused(err) && !IsIndexConflict(err) && !ContradictsCatalog(err) && !isFault(err)
}

// isFault reports whether a server failed without saying at what.
func isFault(err error) bool { return refusedWith(err, InternalError, UnknownError, OperationFailed) }

// IsViewClash reports whether a view conflicts with existing ones.
func IsViewClash(err error) bool {
	return refusedWith(err, GraphContainsCycle, OptionNotSupportedOnView, ViewDepthLimitExceeded)
}

// IsViewRefused reports whether a server does not accept a view because of its own definition, as one of a stage that its version
// does not have, and not because of other views, its catalog or a fault.
func IsViewRefused(err error) bool {
	return IsDefinitionRefused(err) && !IsViewClash(err) && !IsInvalidView(err) && !ContradictsCatalog(err) &&
		!isFault(err) && !refusedWith(err, databaseDifferCase)
}

// IsValidatorRefused reports whether a server may not accept the validator of a command, or its validation action, because of
// what it says, and not because of the server's catalog, of documents or a fault.
func IsValidatorRefused(err error) bool {
	return IsViewRefused(err) && !IsNameRefused(err) && !IsNotUnique(err) && !IsNotInTransaction(err)
}

// IsInvalidView reports whether a command failed because the database has an invalid
// view.
func IsInvalidView(err error) bool { return refusedWith(err, InvalidViewDefinition) }

// IsKept reports whether a system collection cannot be dropped.
func IsKept(err error) bool { return IsDenied(err) || refusedWith(err, IllegalOperation) }

// IsOfView reports whether a command, or an option of it, was refused because its namespace is a view.
func IsOfView(err error) bool {
	return refusedWith(err, CommandNotSupportedOnView, OptionNotSupportedOnView)
}

// Commands.

// IsUnexplained reports whether a refusal says nothing of the command: it is due to a fault of the server, or its
// code has no name here.
func IsUnexplained(err error) bool {
	e, ok := errors.AsType[*Error](err)
	if !ok || Classify(err) != Isolate {
		return false
	}
	_, named := names[e.Code]
	return !named || refusedWith(err, InternalError, UnknownError, OperationFailed)
}

// IsNoCommand reports whether the server does not have the command.
func IsNoCommand(err error) bool { return refusedWith(err, CommandNotFound) }

// IsNotUnderstood reports whether the server does not know or accept a field of the
// command.
func IsNotUnderstood(err error) bool {
	return refusedWith(err, unknownField, FailedToParse, BadValue, TypeMismatch, InvalidOptions)
}

// AreOptionsRefused reports whether the server does not accept the options of a collection, as a validator of a newer version's operators,
// or one with a regular expression that servers since 6.1 do not accept any more (RegexMatchExpression in expression_leaf.cpp,
// compile in expression.cpp).
func AreOptionsRefused(err error) bool {
	return IsNotUnderstood(err) || refusedWith(err, InvalidPipelineOperator, QueryFeatureNotAllowed, IncompatibleCollationVersion,
		invalidRegex, invalidRegexArgument)
}

// IsFeatureOff reports whether the server does not know a field of the command, or does not take it with its present features.
func IsFeatureOff(err error) bool {
	return IsNotUnderstood(err) || refusedWith(err, CommandNotSupported)
}

// IsOptionRefused reports whether an option conflicts with the existing state.
func IsOptionRefused(err error) bool { return refusedWith(err, InvalidOptions) }

// IsNotInTransaction reports whether the command is not supported in transactions.
func IsNotInTransaction(err error) bool {
	return refusedWith(err, OperationNotSupportedInTransaction)
}

// IsNotOffered reports whether a retry is pointless: the server does not have the
// command, does not offer it (Atlas), or the user lacks the privilege.
func IsNotOffered(err error) bool {
	e, ok := errors.AsType[*Error](err)
	return ok && (e.Kind() == Auth || e.Kind() == Unsupported || e.Code == notOffered)
}

// Reads.

// IsNoSample reports whether a $sample returned too many duplicates, as after most of a
// collection was deleted.
func IsNoSample(err error) bool { return refusedWith(err, noSample) }

// IsNoRecord reports whether a server does not find the record to resume at. The code is
// also that of missing keys for signing cluster times.
func IsNoRecord(err error) bool {
	e, ok := errors.AsType[*Error](err)
	return ok && e.Code == KeyNotFound && strings.Contains(e.Message, "resume")
}

// IsPositionLost reports whether the next documents of a capped collection were deleted before a cursor has come to them.
func IsPositionLost(err error) bool { return refusedWith(err, CappedPositionLost) }

// IsReadFailed reports whether a read failed but may succeed with another cursor.
func IsReadFailed(err error) bool { return refusedWith(err, OperationFailed) }

// Members.

// IsNoMember reports whether a set has no such member.
func IsNoMember(err error) bool { return refusedWith(err, NodeNotFound) }

// IsQuiescing reports whether a server is shutting down.
func IsQuiescing(err error) bool { return refusedWith(err, ShutdownInProgress) }

// IsOfOthers reports whether an error is to be expected with concurrent clients: another
// one has removed, created or replaced the object of the command.
func IsOfOthers(err error) bool {
	return refusedWith(err, DuplicateKey, NamespaceNotFound, NamespaceExists, IndexNotFound,
		IndexOptionsConflict, IndexKeySpecsConflict, IndexAlreadyExists, DocumentValidationFailure,
		CannotIndexParallelArrays, PathNotViable, TypeMismatch, BadValue, CommandNotSupportedOnView,
		NoSuchTransaction, OperationNotSupportedInTransaction, TransactionTooOld, CannotCreateIndex,
		IllegalOperation, InvalidOptions)
}

// KeyFault is the type of index that rejects a document with a code.
type KeyFault uint8

const (
	// AnyKey means: the code does not identify a type of index.
	AnyKey KeyFault = iota
	// ParallelKey stands for compound indexes, where two fields of the document are arrays.
	ParallelKey
	// NumberedKey stands for indexes on a numeric path component, which the document has both as a
	// field name and as an array index.
	NumberedKey
	// SphereKey stands for 2dsphere indexes, also on buckets.
	SphereKey
	// FlatKey stands for 2d indexes.
	FlatKey
	// TextKey stands for text indexes.
	TextKey
	// HashedKey stands for hashed indexes.
	HashedKey
)

// String returns the name of the type of index.
func (f KeyFault) String() string {
	return [...]string{"any", "parallel", "numbered", "2dsphere", "2d", "text", "hashed"}[f]
}

// DependsOnVersion reports whether servers of different versions index different documents. No version has ever indexed parallel
// arrays, an ambiguous numeric path, or the hash of an array: refused with these, a document is not the source's.
func (f KeyFault) DependsOnVersion() bool { return f == SphereKey || f == FlatKey || f == TextKey }

// keyFaults are the codes of the server's key generators (expression_keys_private.cpp,
// btree_key_generator.cpp, fts_spec.cpp).
var keyFaults = map[Code]KeyFault{
	CannotIndexParallelArrays: ParallelKey,
	16746:                     NumberedKey,
	16755:                     SphereKey, 16756: SphereKey, 183934: SphereKey, 183493: SphereKey, 167551: SphereKey, 167561: SphereKey,
	16804: FlatKey, 13026: FlatKey, 13027: FlatKey, 13068: FlatKey,
	17261: TextKey, 17262: TextKey,
	16766: HashedKey,
}

// tooManyKeys is in the message about a document of which a 2dsphere index has more keys than a server since 5.3 allows
// (indexMaxNumGeneratedKeysPerDocument). Text indexes have the same code for arrays, which no version takes.
const tooManyKeys = "maximum number of generated keys"

// KeyFaultOf returns the type of index that rejected a document with err.
func KeyFaultOf(err error) KeyFault {
	e, ok := errors.AsType[*Error](err)
	switch {
	case !ok:
		return AnyKey
	case e.Code == CannotBuildIndexKeys && strings.Contains(e.Message, tooManyKeys):
		return SphereKey
	}
	return keyFaults[e.Code]
}

// Brief returns a short form of an error without its message, which may have optimes, so
// that equal errors can be recognized.
func Brief(err error) string {
	if e, ok := errors.AsType[*Error](err); ok {
		return strconv.Itoa(int(e.Code))
	}
	return ""
}

// Codes without a name that have a meaning here.
const (
	notOffered         Code = 8000 // of Atlas
	cappedSize         Code = 10003
	cappedDelete       Code = 10089
	databaseDifferCase Code = 13297
	updateTooLarge     Code = 17419
	upsertTooLarge     Code = 17420
	noSample           Code = 28799
	unknownField       Code = 40415 // of servers that read commands by a schema
	roleExists         Code = 51002
	userExists         Code = 51003
	// An invalid regular expression: of $regex, and of an operator such as $regexMatch.
	invalidRegex, invalidRegexArgument Code = 51091, 51111
)
