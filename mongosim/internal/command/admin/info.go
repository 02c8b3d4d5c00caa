package admin

import (
	"context"
	"net"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/bsontext"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/mongosim/internal/command/dispatch"
)

func runPing(context.Context, *dispatch.Request, *dispatch.Reply) error { return nil }

// runMissing refuses a command that the server has and this one does not.
func runMissing(_ context.Context, r *dispatch.Request, _ *dispatch.Reply) error {
	return servererr.New(servererr.NotImplemented, "%s is not implemented here", r.Spec.Name)
}

// removedIn refuses a command that the dialect's server no longer has.
func removedIn(r *dispatch.Request, major, minor int) error {
	if r.Server.AtLeast(major, minor) {
		return servererr.New(servererr.CommandNotFound, "no such command: '%s'", r.Name)
	}
	return nil
}

// architecture is the machine's as the server names it.
func architecture() string {
	switch runtime.GOARCH {
	case "amd64":
		return "x86_64"
	case "arm64":
		return "aarch64"
	}
	return runtime.GOARCH
}

// GitVersion is the gitVersion of the embedded set. No server reports it; one
// built by hand reports "unknown".
const GitVersion = "the embedded set of replicator"

// runBuildInfo answers as a build of the dialect's version would, without the
// parts that this one does not have.
func runBuildInfo(_ context.Context, r *dispatch.Request, out *dispatch.Reply) error {
	version := r.Server.Config.Dialect.Version
	buf := bsoncore.AppendStringElement(out.Buf, "version", version)
	buf = bsoncore.AppendStringElement(buf, "gitVersion", GitVersion)
	buf = bsoncore.AppendArrayElement(buf, "modules", dispatch.EmptyArray)
	buf = bsoncore.AppendStringElement(buf, "allocator", "system")
	buf = bsoncore.AppendStringElement(buf, "javascriptEngine", "none")
	buf = bsoncore.AppendStringElement(buf, "sysInfo", "deprecated")
	i, buf := bsoncore.AppendArrayElementStart(buf, "versionArray")
	parts := append(strings.Split(version, "."), "0", "0", "0")
	for n := range 4 {
		number, _ := strconv.Atoi(parts[n]) // a part that is not a number, as in 5.0.7-rc1, counts as 0
		buf = bsoncore.AppendInt32Element(buf, dispatch.ArrayKey(n), int32(number))
	}
	buf, _ = bsoncore.AppendArrayEnd(buf, i)
	i, buf = bsoncore.AppendDocumentElementStart(buf, "openssl")
	buf = bsoncore.AppendStringElement(buf, "running", "disabled")
	buf = bsoncore.AppendStringElement(buf, "compiled", "disabled")
	buf, _ = bsoncore.AppendDocumentEnd(buf, i)
	i, buf = bsoncore.AppendDocumentElementStart(buf, "buildEnvironment")
	for _, field := range []struct{ name, value string }{
		{"distmod", ""},
		{"distarch", architecture()},
		{"cc", ""},
		{"ccflags", ""},
		{"cxx", ""},
		{"cxxflags", ""},
		{"linkflags", ""},
		{"target_arch", architecture()},
		{"target_os", runtime.GOOS},
		{"cppdefines", ""},
	} {
		buf = bsoncore.AppendStringElement(buf, field.name, field.value)
	}
	buf, _ = bsoncore.AppendDocumentEnd(buf, i)
	buf = bsoncore.AppendInt32Element(buf, "bits", 64)
	buf = bsoncore.AppendBooleanElement(buf, "debug", false)
	buf = bsoncore.AppendInt32Element(buf, "maxBsonObjectSize", dispatch.MaxDocument)
	out.Buf = dispatch.AppendTexts(buf, "storageEngines", []string{storageEngine})
	return nil
}

// storageEngine is the engine whose guarantees this one gives: snapshots,
// majority reads, documents that many may write at once.
const storageEngine = "wiredTiger"

func runWhatsMyURI(_ context.Context, r *dispatch.Request, out *dispatch.Reply) error {
	out.Buf = bsoncore.AppendStringElement(out.Buf, "you", r.Conn.Remote)
	return nil
}

func runHostInfo(_ context.Context, r *dispatch.Request, out *dispatch.Reply) error {
	host, _, err := net.SplitHostPort(r.Server.Config.Host)
	if err != nil {
		host = r.Server.Config.Host
	}
	memory := int32(dispatch.MemoryBytes() >> 20)
	i, buf := bsoncore.AppendDocumentElementStart(out.Buf, "system")
	buf = bsoncore.AppendDateTimeElement(buf, "currentTime", r.Server.Config.Now().UnixMilli())
	buf = bsoncore.AppendStringElement(buf, "hostname", host)
	buf = bsoncore.AppendInt32Element(buf, "cpuAddrSize", 64)
	buf = bsoncore.AppendInt64Element(buf, "memSizeMB", int64(memory))
	buf = bsoncore.AppendInt64Element(buf, "memLimitMB", int64(memory))
	buf = bsoncore.AppendInt32Element(buf, "numCores", int32(runtime.NumCPU()))
	buf = bsoncore.AppendStringElement(buf, "cpuArch", architecture())
	buf = bsoncore.AppendBooleanElement(buf, "numaEnabled", false)
	buf, _ = bsoncore.AppendDocumentEnd(buf, i)
	i, buf = bsoncore.AppendDocumentElementStart(buf, "os")
	buf = bsoncore.AppendStringElement(buf, "type", strings.ToUpper(runtime.GOOS[:1])+runtime.GOOS[1:])
	buf = bsoncore.AppendStringElement(buf, "name", "")
	buf = bsoncore.AppendStringElement(buf, "version", "")
	buf, _ = bsoncore.AppendDocumentEnd(buf, i)
	out.Buf = bsoncore.AppendDocumentElement(buf, "extra", bsoncore.Document(dispatch.EmptyDocument))
	return nil
}

// runGetCmdLineOpts answers with the options that a server like this one would
// have been started with.
func runGetCmdLineOpts(_ context.Context, r *dispatch.Request, out *dispatch.Reply) error {
	host, port, err := net.SplitHostPort(r.Server.Config.Host)
	number, errPort := strconv.Atoi(port)
	if err != nil || errPort != nil {
		host, number = r.Server.Config.Host, 27017
	}
	argv := []string{"mongod", "--replSet", r.Self.SetName, "--bind_ip", host, "--port", strconv.Itoa(number)}
	if r.Server.Config.Auth != nil {
		argv = append(argv, "--auth")
	}
	buf := dispatch.AppendTexts(out.Buf, "argv", argv)
	parsed, buf := bsoncore.AppendDocumentElementStart(buf, "parsed")
	i, buf := bsoncore.AppendDocumentElementStart(buf, "net")
	buf = bsoncore.AppendStringElement(buf, "bindIp", host)
	buf = bsoncore.AppendInt32Element(buf, "port", int32(number))
	buf, _ = bsoncore.AppendDocumentEnd(buf, i)
	i, buf = bsoncore.AppendDocumentElementStart(buf, "replication")
	buf = bsoncore.AppendStringElement(buf, "replSet", r.Self.SetName)
	buf, _ = bsoncore.AppendDocumentEnd(buf, i)
	if r.Server.Config.Auth != nil {
		i, buf = bsoncore.AppendDocumentElementStart(buf, "security")
		buf = bsoncore.AppendStringElement(buf, "authorization", "enabled")
		buf, _ = bsoncore.AppendDocumentEnd(buf, i)
	}
	out.Buf, _ = bsoncore.AppendDocumentEnd(buf, parsed)
	return nil
}

// logs are the log names of getLog. They are always empty.
var logs = []string{"global", "startupWarnings"}

func runGetLog(_ context.Context, r *dispatch.Request, out *dispatch.Reply) error {
	first := dispatch.FirstElem(r.Cmd)
	name, ok := first.Text()
	switch {
	case !ok:
		return servererr.New(servererr.TypeMismatch, "Argument to getLog must be of type String; found %s of type %s",
			bsontext.Value(first.Raw()), bsontext.TypeName(first.Type))
	case name == "*":
		out.Buf = dispatch.AppendTexts(out.Buf, "names", logs)
	case slices.Contains(logs, name):
		out.Buf = bsoncore.AppendInt32Element(out.Buf, "totalLinesWritten", 0)
		out.Buf = bsoncore.AppendArrayElement(out.Buf, "log", dispatch.EmptyArray)
	default:
		return servererr.New(servererr.OperationFailed, "No log named '%s'", name)
	}
	return nil
}

// runGetDefaultRWConcern returns the unchanged defaults.
func runGetDefaultRWConcern(_ context.Context, r *dispatch.Request, out *dispatch.Reply) error {
	out.Buf = appendDefaultConcerns(r.Server, out.Buf)
	if dispatch.FlagOf(r.Cmd, "inMemory") {
		out.Buf = bsoncore.AppendBooleanElement(out.Buf, "inMemory", true)
	}
	return nil
}

// appendDefaultConcerns appends the fields of getDefaultRWConcern, all
// implicit.
func appendDefaultConcerns(s *dispatch.Server, buf []byte) []byte {
	if s.AtLeast(5, 0) {
		i, b := bsoncore.AppendDocumentElementStart(buf, "defaultReadConcern")
		b = bsoncore.AppendStringElement(b, "level", "local")
		b, _ = bsoncore.AppendDocumentEnd(b, i)
		i, b = bsoncore.AppendDocumentElementStart(b, "defaultWriteConcern")
		b = bsoncore.AppendStringElement(b, "w", dispatch.Majority)
		b = bsoncore.AppendInt32Element(b, "wtimeout", 0)
		b, _ = bsoncore.AppendDocumentEnd(b, i)
		b = bsoncore.AppendStringElement(b, "defaultWriteConcernSource", "implicit")
		buf = bsoncore.AppendStringElement(b, "defaultReadConcernSource", "implicit")
	}
	return bsoncore.AppendDateTimeElement(buf, "localUpdateWallClockTime", s.Stats.Started.UnixMilli())
}

func runGetFreeMonitoringStatus(_ context.Context, r *dispatch.Request, out *dispatch.Reply) error {
	out.Buf = bsoncore.AppendStringElement(out.Buf, "state", "undecided")
	return removedIn(r, 7, 0)
}

// runCurrentOp lists no operations: they are not tracked.
func runCurrentOp(_ context.Context, _ *dispatch.Request, out *dispatch.Reply) error {
	out.Buf = bsoncore.AppendArrayElement(out.Buf, "inprog", dispatch.EmptyArray)
	return nil
}
