package serverupdate

import "github.com/oplogrep/replicator/internal/mongo/servererr"

// Error reports a statement that the server refuses, or that this package cannot
// interpret. Its message is the server's own where the server's is known: for
// modifiers, replacements and inserts. Expressions are refused in this package's
// words.
type Error = servererr.Error

// Short names of the codes that are met here.
const (
	codeBadValue                   = int(servererr.BadValue)
	codeFailedToParse              = int(servererr.FailedToParse)
	codeTypeMismatch               = int(servererr.TypeMismatch)
	codeOverflow                   = int(servererr.Overflow)
	codePathNotViable              = int(servererr.PathNotViable)
	codeCannotBackfillArray        = int(servererr.CannotBackfillArray)
	codeConflictingUpdateOperators = int(servererr.ConflictingUpdateOperators)
	codeDollarPrefixedFieldName    = int(servererr.DollarPrefixedFieldName)
	codeInvalidIDField             = int(servererr.InvalidIDField)
	codeNotSingleValueField        = int(servererr.NotSingleValueField)
	codeInvalidDBRef               = int(servererr.InvalidDBRef)
	codeEmptyFieldName             = int(servererr.EmptyFieldName)
	codeImmutableField             = int(servererr.ImmutableField)
	codeInvalidOptions             = int(servererr.InvalidOptions)
	codeExceededMemoryLimit        = int(servererr.ExceededMemoryLimit)
	codeInvalidPipelineOperator    = int(servererr.InvalidPipelineOperator)
	codeNotImplemented             = int(servererr.NotImplemented)
	codeBSONObjectTooLarge         = int(servererr.BSONObjectTooLarge)
	// Numbers of single assertions have no name.
	codeResultTooLarge = 17419
	codeUpsertTooLarge = 17420
)

// refuse takes a code as one of the numbers above, a literal, or a servererr.Code.
func refuse[C ~int | ~int32](code C, format string, args ...any) *Error {
	return servererr.New(servererr.Code(code), format, args...)
}
