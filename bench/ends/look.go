package ends

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/bench/result"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/mongosim"
)

// Look asks the servers what they are, and sets Is: the kind and the version by
// buildInfo, the members by the set's configuration, or by hello (which omits hidden
// members) where reading that is not authorized.
func (e *End) look(ctx context.Context) error {
	build, err := e.run(ctx, "admin", bson.D{{Key: "buildInfo", Value: 1}})
	if err != nil {
		return fmt.Errorf("ask for index builds: %w", err)
	}
	is := built(build)
	switch config, err := e.run(ctx, "admin", bson.D{{Key: "replSetGetConfig", Value: 1}}); {
	case err == nil:
		is.Members = length(config, "config", "members")
	case !refused(err):
		return fmt.Errorf("ask for the set's members: %w", err)
	}
	if is.Members == 0 {
		hello, err := e.run(ctx, "admin", bson.D{{Key: "hello", Value: 1}})
		if err != nil {
			return fmt.Errorf("ask for the set's members: %w", err)
		}
		is.Members = length(hello, "hosts") + length(hello, "passives") + length(hello, "arbiters")
	}
	e.Is = is
	return nil
}

// built returns the kind and version of a server by its buildInfo. An embedded set
// identifies itself there; the version is the one that it emulates.
func built(info bson.Raw) result.End {
	version, _ := info.Lookup("version").StringValueOK()
	git, _ := info.Lookup("gitVersion").StringValueOK()
	if git != mongosim.GitVersion {
		return result.End{Kind: result.EndReal, Version: version}
	}
	if parts := strings.SplitN(version, ".", 3); len(parts) > 2 {
		version = parts[0] + "." + parts[1]
	}
	return result.End{Kind: result.EndEmbedded, Version: version}
}

// refused reports whether a server answered that a command is not for this client.
func refused(err error) bool {
	_, answered := errors.AsType[*servererr.Error](err)
	return answered
}

// length returns the number of values of an array, 0 if it is not one.
func length(doc bson.Raw, path ...string) int {
	array, ok := doc.Lookup(path...).ArrayOK()
	if !ok {
		return 0
	}
	values, err := array.Values()
	if err != nil {
		return 0
	}
	return len(values)
}
