package servererr

import "strconv"

// Code is a server's error code. Codes without a name here are those of single
// assertions, which the server names LocationNNNNN.
type Code int32

// The codes that have a name.
const (
	InternalError                             Code = 1
	BadValue                                  Code = 2
	NoSuchKey                                 Code = 4
	GraphContainsCycle                        Code = 5
	HostUnreachable                           Code = 6
	HostNotFound                              Code = 7
	UnknownError                              Code = 8
	FailedToParse                             Code = 9
	UserNotFound                              Code = 11
	Unauthorized                              Code = 13
	TypeMismatch                              Code = 14
	Overflow                                  Code = 15
	InvalidLength                             Code = 16
	ProtocolError                             Code = 17
	AuthenticationFailed                      Code = 18
	IllegalOperation                          Code = 20
	InvalidBSON                               Code = 22
	AlreadyInitialized                        Code = 23
	LockTimeout                               Code = 24
	NamespaceNotFound                         Code = 26
	IndexNotFound                             Code = 27
	PathNotViable                             Code = 28
	RoleNotFound                              Code = 31
	CannotBackfillArray                       Code = 34
	ConflictingUpdateOperators                Code = 40
	CursorNotFound                            Code = 43
	LockBusy                                  Code = 46
	NamespaceExists                           Code = 48
	MaxTimeMSExpired                          Code = 50
	DollarPrefixedFieldName                   Code = 52
	InvalidIDField                            Code = 53
	NotSingleValueField                       Code = 54
	InvalidDBRef                              Code = 55
	EmptyFieldName                            Code = 56
	DottedFieldName                           Code = 57
	CommandNotFound                           Code = 59
	OplogOperationUnsupported                 Code = 62
	WriteConcernTimeout                       Code = 64
	ImmutableField                            Code = 66
	CannotCreateIndex                         Code = 67
	IndexAlreadyExists                        Code = 68
	InvalidOptions                            Code = 72
	InvalidNamespace                          Code = 73
	NodeNotFound                              Code = 74
	UnknownReplWriteConcern                   Code = 79
	IndexOptionsConflict                      Code = 85
	IndexKeySpecsConflict                     Code = 86
	NetworkTimeout                            Code = 89
	CallbackCanceled                          Code = 90
	ShutdownInProgress                        Code = 91
	InvalidReplicaSetConfig                   Code = 93
	NotYetInitialized                         Code = 94
	NotSecondary                              Code = 95
	OperationFailed                           Code = 96
	UnsatisfiableWriteConcern                 Code = 100
	NewReplicaSetConfigurationIncompatible    Code = 103
	NodeNotElectable                          Code = 104
	LockFailed                                Code = 107
	InconsistentReplicaSetNames               Code = 108
	ConfigurationInProgress                   Code = 109
	WriteConflict                             Code = 112
	CommandNotSupported                       Code = 115
	DocTooLargeForCapped                      Code = 116
	ConflictingOperationInProgress            Code = 117
	InvalidSyncSource                         Code = 119
	OplogStartMissing                         Code = 120
	DocumentValidationFailure                 Code = 121
	NotAReplicaSet                            Code = 123
	CommandFailed                             Code = 125
	FailedToSatisfyReadPreference             Code = 133
	ReadConcernMajorityNotAvailableYet        Code = 134
	StaleTerm                                 Code = 135
	CappedPositionLost                        Code = 136
	RemoteOplogStale                          Code = 138
	CursorInUse                               Code = 143
	PooledConnectionsDropped                  Code = 145
	ExceededMemoryLimit                       Code = 146
	ReadConcernMajorityNotEnabled             Code = 148
	OplogOutOfOrder                           Code = 152
	IncompatibleCollationVersion              Code = 161
	CollectionIsEmpty                         Code = 162
	InitialSyncActive                         Code = 164
	ViewDepthLimitExceeded                    Code = 165
	CommandNotSupportedOnView                 Code = 166
	OptionNotSupportedOnView                  Code = 167
	InvalidPipelineOperator                   Code = 168
	CannotIndexParallelArrays                 Code = 171
	TransportSessionClosed                    Code = 172
	QueryPlanKilled                           Code = 175
	AmbiguousIndexKeyPattern                  Code = 181
	InvalidViewDefinition                     Code = 182
	ClientMetadataCannotBeMutated             Code = 186
	PrimarySteppedDown                        Code = 189
	InvalidIndexSpecificationOption           Code = 197
	CannotBuildIndexKeys                      Code = 201
	NetworkInterfaceExceededTimeLimit         Code = 202
	TimeProofMismatch                         Code = 204
	ClusterTimeFailsRateLimiter               Code = 205
	NoSuchSession                             Code = 206
	InvalidUUID                               Code = 207
	TooManyLocks                              Code = 208
	StaleClusterTime                          Code = 209
	CannotVerifyAndSignLogicalTime            Code = 210
	KeyNotFound                               Code = 211
	DatabaseDropPending                       Code = 215
	ElectionInProgress                        Code = 216
	IncompleteTransactionHistory              Code = 217
	UpdateOperationFailed                     Code = 218
	IllegalOpMsgFlag                          Code = 223
	QueryFeatureNotAllowed                    Code = 224
	TransactionTooOld                         Code = 225
	MaxSubPipelineDepthExceeded               Code = 232
	CursorKilled                              Code = 237
	NotImplemented                            Code = 238
	SnapshotTooOld                            Code = 239
	ConversionFailure                         Code = 241
	SnapshotUnavailable                       Code = 246
	NoSuchTransaction                         Code = 251
	TransactionCommitted                      Code = 256
	TransactionTooLarge                       Code = 257
	InvalidResumeToken                        Code = 260
	TooManyLogicalSessions                    Code = 261
	ExceededTimeLimit                         Code = 262
	OperationNotSupportedInTransaction        Code = 263
	TooManyFilesOpen                          Code = 264
	PreparedTransactionInProgress             Code = 267
	IndexBuildAborted                         Code = 276
	UnsatisfiableCommitQuorum                 Code = 278
	ClientDisconnect                          Code = 279
	TransactionCoordinatorSteppingDown        Code = 281
	IndexBuildAlreadyInProgress               Code = 285
	ChecksumMismatch                          Code = 288
	TransactionExceededLifetimeLimitSeconds   Code = 290
	QueryExceededMemoryLimitNoDiskUseAllowed  Code = 292
	CurrentConfigNotCommittedYet              Code = 308
	ObjectIsBusy                              Code = 314
	APIVersionError                           Code = 322
	APIStrictError                            Code = 323
	OplogQueryMinTsMissing                    Code = 326
	MechanismUnavailable                      Code = 334
	UnsupportedOpQueryCommand                 Code = 352
	InterruptedDueToStorageChange             Code = 355
	CannotConvertIndexToUnique                Code = 359
	CollectionUUIDMismatch                    Code = 361
	RetryableTransactionInProgress            Code = 363
	TemporarilyUnavailable                    Code = 365
	UserWritesBlocked                         Code = 371
	TransactionTooLargeForCache               Code = 388
	ResourceExhausted                         Code = 402
	AdmissionQueueOverflow                    Code = 433
	MixedSchemaBuckets                        Code = 408
	RateLimitExceeded                         Code = 449
	PooledConnectionAcquisitionRejected       Code = 450
	IngressRequestRateLimitExceeded           Code = 462
	InterruptedDueToAddShard                  Code = 471
	InterruptedByTimeseriesConversion         Code = 485
	SocketException                           Code = 9001
	LegacyNotPrimary                          Code = 10058
	NotWritablePrimary                        Code = 10107
	BSONObjectTooLarge                        Code = 10334
	DuplicateKey                              Code = 11000
	InterruptedAtShutdown                     Code = 11600
	Interrupted                               Code = 11601
	InterruptedDueToReplStateChange           Code = 11602
	BackgroundOperationInProgressForDatabase  Code = 12586
	BackgroundOperationInProgressForNamespace Code = 12587
	NotPrimaryNoSecondaryOk                   Code = 13435
	NotPrimaryOrSecondary                     Code = 13436
	OutOfDiskSpace                            Code = 14031
	ClientMarkedKilled                        Code = 46841
	NotARetryableWriteCommand                 Code = 50768
	InterruptedDueToFCVChange                 Code = 10045600
)

var names = map[Code]string{
	InternalError:                             "InternalError",
	BadValue:                                  "BadValue",
	NoSuchKey:                                 "NoSuchKey",
	GraphContainsCycle:                        "GraphContainsCycle",
	HostUnreachable:                           "HostUnreachable",
	HostNotFound:                              "HostNotFound",
	UnknownError:                              "UnknownError",
	FailedToParse:                             "FailedToParse",
	UserNotFound:                              "UserNotFound",
	Unauthorized:                              "Unauthorized",
	TypeMismatch:                              "TypeMismatch",
	Overflow:                                  "Overflow",
	InvalidLength:                             "InvalidLength",
	ProtocolError:                             "ProtocolError",
	AuthenticationFailed:                      "AuthenticationFailed",
	IllegalOperation:                          "IllegalOperation",
	InvalidBSON:                               "InvalidBSON",
	AlreadyInitialized:                        "AlreadyInitialized",
	LockTimeout:                               "LockTimeout",
	NamespaceNotFound:                         "NamespaceNotFound",
	IndexNotFound:                             "IndexNotFound",
	PathNotViable:                             "PathNotViable",
	RoleNotFound:                              "RoleNotFound",
	CannotBackfillArray:                       "CannotBackfillArray",
	ConflictingUpdateOperators:                "ConflictingUpdateOperators",
	CursorNotFound:                            "CursorNotFound",
	LockBusy:                                  "LockBusy",
	NamespaceExists:                           "NamespaceExists",
	MaxTimeMSExpired:                          "MaxTimeMSExpired",
	DollarPrefixedFieldName:                   "DollarPrefixedFieldName",
	InvalidIDField:                            "InvalidIdField",
	NotSingleValueField:                       "NotSingleValueField",
	InvalidDBRef:                              "InvalidDBRef",
	EmptyFieldName:                            "EmptyFieldName",
	DottedFieldName:                           "DottedFieldName",
	CommandNotFound:                           "CommandNotFound",
	OplogOperationUnsupported:                 "OplogOperationUnsupported",
	WriteConcernTimeout:                       "WriteConcernTimeout",
	ImmutableField:                            "ImmutableField",
	CannotCreateIndex:                         "CannotCreateIndex",
	IndexAlreadyExists:                        "IndexAlreadyExists",
	InvalidOptions:                            "InvalidOptions",
	InvalidNamespace:                          "InvalidNamespace",
	NodeNotFound:                              "NodeNotFound",
	UnknownReplWriteConcern:                   "UnknownReplWriteConcern",
	IndexOptionsConflict:                      "IndexOptionsConflict",
	IndexKeySpecsConflict:                     "IndexKeySpecsConflict",
	NetworkTimeout:                            "NetworkTimeout",
	CallbackCanceled:                          "CallbackCanceled",
	ShutdownInProgress:                        "ShutdownInProgress",
	InvalidReplicaSetConfig:                   "InvalidReplicaSetConfig",
	NotYetInitialized:                         "NotYetInitialized",
	NotSecondary:                              "NotSecondary",
	OperationFailed:                           "OperationFailed",
	UnsatisfiableWriteConcern:                 "UnsatisfiableWriteConcern",
	NewReplicaSetConfigurationIncompatible:    "NewReplicaSetConfigurationIncompatible",
	NodeNotElectable:                          "NodeNotElectable",
	LockFailed:                                "LockFailed",
	InconsistentReplicaSetNames:               "InconsistentReplicaSetNames",
	ConfigurationInProgress:                   "ConfigurationInProgress",
	WriteConflict:                             "WriteConflict",
	CommandNotSupported:                       "CommandNotSupported",
	DocTooLargeForCapped:                      "DocTooLargeForCapped",
	ConflictingOperationInProgress:            "ConflictingOperationInProgress",
	InvalidSyncSource:                         "InvalidSyncSource",
	OplogStartMissing:                         "OplogStartMissing",
	DocumentValidationFailure:                 "DocumentValidationFailure",
	NotAReplicaSet:                            "NotAReplicaSet",
	CommandFailed:                             "CommandFailed",
	FailedToSatisfyReadPreference:             "FailedToSatisfyReadPreference",
	ReadConcernMajorityNotAvailableYet:        "ReadConcernMajorityNotAvailableYet",
	StaleTerm:                                 "StaleTerm",
	CappedPositionLost:                        "CappedPositionLost",
	RemoteOplogStale:                          "RemoteOplogStale",
	CursorInUse:                               "CursorInUse",
	PooledConnectionsDropped:                  "PooledConnectionsDropped",
	ExceededMemoryLimit:                       "ExceededMemoryLimit",
	ReadConcernMajorityNotEnabled:             "ReadConcernMajorityNotEnabled",
	OplogOutOfOrder:                           "OplogOutOfOrder",
	IncompatibleCollationVersion:              "IncompatibleCollationVersion",
	CollectionIsEmpty:                         "CollectionIsEmpty",
	InitialSyncActive:                         "InitialSyncActive",
	ViewDepthLimitExceeded:                    "ViewDepthLimitExceeded",
	CommandNotSupportedOnView:                 "CommandNotSupportedOnView",
	OptionNotSupportedOnView:                  "OptionNotSupportedOnView",
	InvalidPipelineOperator:                   "InvalidPipelineOperator",
	CannotIndexParallelArrays:                 "CannotIndexParallelArrays",
	TransportSessionClosed:                    "TransportSessionClosed",
	QueryPlanKilled:                           "QueryPlanKilled",
	AmbiguousIndexKeyPattern:                  "AmbiguousIndexKeyPattern",
	InvalidViewDefinition:                     "InvalidViewDefinition",
	ClientMetadataCannotBeMutated:             "ClientMetadataCannotBeMutated",
	PrimarySteppedDown:                        "PrimarySteppedDown",
	InvalidIndexSpecificationOption:           "InvalidIndexSpecificationOption",
	CannotBuildIndexKeys:                      "CannotBuildIndexKeys",
	NetworkInterfaceExceededTimeLimit:         "NetworkInterfaceExceededTimeLimit",
	TimeProofMismatch:                         "TimeProofMismatch",
	ClusterTimeFailsRateLimiter:               "ClusterTimeFailsRateLimiter",
	NoSuchSession:                             "NoSuchSession",
	InvalidUUID:                               "InvalidUUID",
	TooManyLocks:                              "TooManyLocks",
	StaleClusterTime:                          "StaleClusterTime",
	CannotVerifyAndSignLogicalTime:            "CannotVerifyAndSignLogicalTime",
	KeyNotFound:                               "KeyNotFound",
	DatabaseDropPending:                       "DatabaseDropPending",
	ElectionInProgress:                        "ElectionInProgress",
	IncompleteTransactionHistory:              "IncompleteTransactionHistory",
	UpdateOperationFailed:                     "UpdateOperationFailed",
	IllegalOpMsgFlag:                          "IllegalOpMsgFlag",
	QueryFeatureNotAllowed:                    "QueryFeatureNotAllowed",
	TransactionTooOld:                         "TransactionTooOld",
	MaxSubPipelineDepthExceeded:               "MaxSubPipelineDepthExceeded",
	CursorKilled:                              "CursorKilled",
	NotImplemented:                            "NotImplemented",
	SnapshotTooOld:                            "SnapshotTooOld",
	ConversionFailure:                         "ConversionFailure",
	SnapshotUnavailable:                       "SnapshotUnavailable",
	NoSuchTransaction:                         "NoSuchTransaction",
	TransactionCommitted:                      "TransactionCommitted",
	TransactionTooLarge:                       "TransactionTooLarge",
	InvalidResumeToken:                        "InvalidResumeToken",
	TooManyLogicalSessions:                    "TooManyLogicalSessions",
	ExceededTimeLimit:                         "ExceededTimeLimit",
	OperationNotSupportedInTransaction:        "OperationNotSupportedInTransaction",
	TooManyFilesOpen:                          "TooManyFilesOpen",
	PreparedTransactionInProgress:             "PreparedTransactionInProgress",
	IndexBuildAborted:                         "IndexBuildAborted",
	UnsatisfiableCommitQuorum:                 "UnsatisfiableCommitQuorum",
	ClientDisconnect:                          "ClientDisconnect",
	TransactionCoordinatorSteppingDown:        "TransactionCoordinatorSteppingDown",
	IndexBuildAlreadyInProgress:               "IndexBuildAlreadyInProgress",
	ChecksumMismatch:                          "ChecksumMismatch",
	TransactionExceededLifetimeLimitSeconds:   "TransactionExceededLifetimeLimitSeconds",
	QueryExceededMemoryLimitNoDiskUseAllowed:  "QueryExceededMemoryLimitNoDiskUseAllowed",
	CurrentConfigNotCommittedYet:              "CurrentConfigNotCommittedYet",
	ObjectIsBusy:                              "ObjectIsBusy",
	APIVersionError:                           "APIVersionError",
	APIStrictError:                            "APIStrictError",
	OplogQueryMinTsMissing:                    "OplogQueryMinTsMissing",
	MechanismUnavailable:                      "MechanismUnavailable",
	UnsupportedOpQueryCommand:                 "UnsupportedOpQueryCommand",
	InterruptedDueToStorageChange:             "InterruptedDueToStorageChange",
	CannotConvertIndexToUnique:                "CannotConvertIndexToUnique",
	CollectionUUIDMismatch:                    "CollectionUUIDMismatch",
	RetryableTransactionInProgress:            "RetryableTransactionInProgress",
	TemporarilyUnavailable:                    "TemporarilyUnavailable",
	UserWritesBlocked:                         "UserWritesBlocked",
	TransactionTooLargeForCache:               "TransactionTooLargeForCache",
	ResourceExhausted:                         "ResourceExhausted",
	AdmissionQueueOverflow:                    "AdmissionQueueOverflow",
	MixedSchemaBuckets:                        "CannotInsertTimeseriesBucketsWithMixedSchema",
	RateLimitExceeded:                         "RateLimitExceeded",
	PooledConnectionAcquisitionRejected:       "PooledConnectionAcquisitionRejected",
	IngressRequestRateLimitExceeded:           "IngressRequestRateLimitExceeded",
	InterruptedDueToAddShard:                  "InterruptedDueToAddShard",
	InterruptedByTimeseriesConversion:         "InterruptedDueToTimeseriesUpgradeDowngrade",
	SocketException:                           "SocketException",
	LegacyNotPrimary:                          "LegacyNotPrimary",
	NotWritablePrimary:                        "NotWritablePrimary",
	BSONObjectTooLarge:                        "BSONObjectTooLarge",
	DuplicateKey:                              "DuplicateKey",
	InterruptedAtShutdown:                     "InterruptedAtShutdown",
	Interrupted:                               "Interrupted",
	InterruptedDueToReplStateChange:           "InterruptedDueToReplStateChange",
	BackgroundOperationInProgressForDatabase:  "BackgroundOperationInProgressForDatabase",
	BackgroundOperationInProgressForNamespace: "BackgroundOperationInProgressForNamespace",
	NotPrimaryNoSecondaryOk:                   "NotPrimaryNoSecondaryOk",
	NotPrimaryOrSecondary:                     "NotPrimaryOrSecondary",
	OutOfDiskSpace:                            "OutOfDiskSpace",
	ClientMarkedKilled:                        "ClientMarkedKilled",
	NotARetryableWriteCommand:                 "NotARetryableWriteCommand",
	InterruptedDueToFCVChange:                 "InterruptedDueToFCVChange",
}

// String returns the server's codeName: "DuplicateKey", or "Location51024".
func (c Code) String() string {
	if name, ok := names[c]; ok {
		return name
	}
	return "Location" + strconv.Itoa(int(c))
}
