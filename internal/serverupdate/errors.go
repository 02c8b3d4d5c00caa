package serverupdate

import "fmt"

// The codes that the server gives names. Numbers without a name are those of
// single assertions; their CodeName is "Location" and the number.
const (
	codeBadValue                   = 2
	codeFailedToParse              = 9
	codeTypeMismatch               = 14
	codeOverflow                   = 15
	codePathNotViable              = 28
	codeConflictingUpdateOperators = 40
	codeDollarPrefixedFieldName    = 52
	codeInvalidIDField             = 53
	codeNotSingleValueField        = 54
	codeInvalidDBRef               = 55
	codeEmptyFieldName             = 56
	codeImmutableField             = 66
	codeInvalidOptions             = 72
	codeExceededMemoryLimit        = 146
	codeInvalidPipelineOperator    = 168
	codeBSONObjectTooLarge         = 10334
	codeCannotBackfillArray        = 15891
)

func codeName(code int) string {
	switch code {
	case codeBadValue:
		return "BadValue"
	case codeFailedToParse:
		return "FailedToParse"
	case codeTypeMismatch:
		return "TypeMismatch"
	case codeOverflow:
		return "Overflow"
	case codePathNotViable:
		return "PathNotViable"
	case codeConflictingUpdateOperators:
		return "ConflictingUpdateOperators"
	case codeDollarPrefixedFieldName:
		return "DollarPrefixedFieldName"
	case codeInvalidIDField:
		return "InvalidIdField"
	case codeNotSingleValueField:
		return "NotSingleValueField"
	case codeInvalidDBRef:
		return "InvalidDBRef"
	case codeEmptyFieldName:
		return "EmptyFieldName"
	case codeImmutableField:
		return "ImmutableField"
	case codeInvalidOptions:
		return "InvalidOptions"
	case codeExceededMemoryLimit:
		return "ExceededMemoryLimit"
	case codeInvalidPipelineOperator:
		return "InvalidPipelineOperator"
	case codeBSONObjectTooLarge:
		return "BSONObjectTooLarge"
	case codeCannotBackfillArray:
		return "CannotBackfillArray"
	default:
		return fmt.Sprintf("Location%d", code)
	}
}

// Error is a statement that the server refuses, or that this package cannot
// interpret.
type Error struct {
	// Code is the server's error code.
	Code int
	// CodeName is the server's name of the code, such as "ImmutableField", or
	// "Location" and the number where it has none.
	CodeName string
	// Message says what is refused, in this package's words, not the server's.
	Message string
}

func (e *Error) Error() string {
	return fmt.Sprintf("serverupdate: %s (%s, code %d)", e.Message, e.CodeName, e.Code)
}

func refuse(code int, format string, args ...any) *Error {
	return &Error{Code: code, CodeName: codeName(code), Message: fmt.Sprintf(format, args...)}
}
