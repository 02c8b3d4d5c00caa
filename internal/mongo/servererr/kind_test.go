package servererr_test

import (
	"strings"
	"testing"

	"github.com/oplogrep/replicator/internal/mongo/servererr"
)

// TestKinds: the kinds of codes agree with the server's own categories. The names are those
// of src/mongo/base/error_codes.yml.
func TestKinds(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		code servererr.Code
		name string
		want servererr.Kind
	}{
		{24, "LockTimeout", servererr.Transient},
		{112, "WriteConflict", servererr.Transient},
		{246, "SnapshotUnavailable", servererr.Transient},
		{134, "ReadConcernMajorityNotAvailableYet", servererr.Transient},
		{365, "TemporarilyUnavailable", servererr.Transient},
		{261, "TooManyLogicalSessions", servererr.Transient},
		{211, "KeyNotFound", servererr.Transient},
		{204, "TimeProofMismatch", servererr.Transient},
		{371, "UserWritesBlocked", servererr.Transient},
		{433, "AdmissionQueueOverflow", servererr.Transient},
		{257, "TransactionTooLarge", servererr.Split},
		{290, "TransactionExceededLifetimeLimitSeconds", servererr.Split},
		{388, "TransactionTooLargeForCache", servererr.Split},
		{146, "ExceededMemoryLimit", servererr.Split},
		{50, "MaxTimeMSExpired", servererr.Expired},
		{276, "IndexBuildAborted", servererr.Ended},
		{90, "CallbackCanceled", servererr.Ended},
		{279, "ClientDisconnect", servererr.Ended},
		{471, "InterruptedDueToAddShard", servererr.Ended},
		{485, "InterruptedDueToTimeseriesUpgradeDowngrade", servererr.Ended},
		{11601, "Interrupted", servererr.Ended},
		{9001, "SocketException", servererr.NotPrimary},
		{7, "HostNotFound", servererr.NotPrimary},
		{11, "UserNotFound", servererr.NotPrimary},
		{11602, "InterruptedDueToReplStateChange", servererr.NotPrimary},
		{11600, "InterruptedAtShutdown", servererr.Leaving},
		{217, "IncompleteTransactionHistory", servererr.Session},
		{256, "TransactionCommitted", servererr.Session},
		{79, "UnknownReplWriteConcern", servererr.Unconfirmed},
		{143, "CursorInUse", servererr.Cursor},
		{14031, "OutOfDiskSpace", servererr.Full},
		{13, "Unauthorized", servererr.Auth},
		{59, "CommandNotFound", servererr.Unsupported},
		{2, "BadValue", servererr.Isolate},
		{11000, "DuplicateKey", servererr.Isolate},
		{12051, "Location12051", servererr.Isolate},
	} {
		if got := tt.code.Kind(); got != tt.want || tt.code.String() != tt.name {
			t.Errorf("%d: %s, %s, want %s, %s", tt.code, tt.code, got, tt.name, tt.want)
		}
		if got := servererr.New(tt.code, "no").Kind(); got != tt.want {
			t.Errorf("%d, as an error: %s, want %s", tt.code, got, tt.want)
		}
	}
}

// TestDiskFaults: a server whose disk is full, or fails, has no code for that where its storage engine reports it. The
// command is not at fault.
func TestDiskFaults(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		code servererr.Code
		text string
		want servererr.Kind
	}{
		{servererr.UnknownError, "28: No space left on device", servererr.Full},
		{servererr.UnknownError, "WiredTigerRecordStore::insertRecord 28: No space left on device", servererr.Full},
		{servererr.UnknownError, "30: Read-only file system", servererr.Full},
		{servererr.UnknownError, "5: Input/output error", servererr.Full},
		{servererr.UnknownError, "-31803: WT_NOTFOUND: item not found", servererr.Isolate},
		{16821, "error writing to file \"/data/db/_tmp/extsort-index.1-0\": errno:28 No space left on device", servererr.Full},
		{5642403, "Error writing to file /data/db/_tmp/extsort-index.1-0: No space left on device", servererr.Full},
		{16818, "Error opening file /data/db/_tmp/extsort-index.1-0: Read-only file system", servererr.Full},
		{5479100, "Error flushing file /data/db/_tmp/extsort-index.1-0: No space left on device", servererr.Full},
		{16818, "Error opening file /data/db/_tmp/extsort-index.1-0: No such file or directory", servererr.Isolate},
		{servererr.BadValue, "the name 28: No space left on device", servererr.Isolate},
	} {
		err := servererr.New(tt.code, "%s", tt.text)
		if got := err.Kind(); got != tt.want || got.Passes() != (tt.want == servererr.Full) {
			t.Errorf("%d, %s: %s, want %s", tt.code, tt.text, got, tt.want)
		}
		if refused := servererr.IsDefinitionRefused(err); refused != (tt.want == servererr.Isolate) {
			t.Errorf("%d, %s: the definition of an index is refused: %t", tt.code, tt.text, refused)
		}
	}
}

// TestLabels: labels decide for unknown codes, and for no others.
func TestLabels(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		code   servererr.Code
		labels []string
		want   servererr.Kind
	}{
		{99999, nil, servererr.Isolate},
		{99999, []string{"NoWritesPerformed"}, servererr.Isolate},
		{99999, []string{servererr.LabelTransient}, servererr.Transient},
		{99999, []string{servererr.LabelRetryable, servererr.LabelOverloaded}, servererr.Transient},
		{99999, []string{servererr.LabelRetryableWrite}, servererr.NotPrimary},
		{99999, []string{servererr.LabelResumable}, servererr.Cursor},
		{99999, []string{servererr.LabelTransient, servererr.LabelUnknownCommit}, servererr.Session},
		{servererr.NotWritablePrimary, []string{servererr.LabelTransient}, servererr.NotPrimary},
		{servererr.Unauthorized, []string{servererr.LabelRetryableWrite}, servererr.Auth},
	} {
		if got := servererr.New(tt.code, "no").WithLabels(tt.labels...).Kind(); got != tt.want {
			t.Errorf("%d with %q: %s, want %s", tt.code, tt.labels, got, tt.want)
		}
	}
}

// TestCodes: every code and every kind has one name.
func TestCodes(t *testing.T) {
	t.Parallel()
	names := map[string]bool{}
	seen := map[servererr.Kind]bool{}
	for _, c := range servererr.Codes() {
		if names[c.String()] || strings.HasPrefix(c.String(), "Location") {
			t.Errorf("%d: another code is called %s", c, c)
		}
		names[c.String()] = true
		seen[c.Kind()] = true
	}
	said := map[string]bool{}
	for k := servererr.Isolate; k <= servererr.Unsupported; k++ {
		if !seen[k] || said[k.String()] {
			t.Errorf("%s: no code is of that kind, or it has another's name", k)
		}
		said[k.String()] = true
	}
}
