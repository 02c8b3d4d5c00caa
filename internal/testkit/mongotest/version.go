package mongotest

import (
	"context"
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
)

// Version is a server's version, without the suffix of a release candidate.
type Version struct{ Major, Minor, Patch int }

// String returns the version in the usual form, as in 5.0.7.
func (v Version) String() string { return fmt.Sprintf("%d.%d.%d", v.Major, v.Minor, v.Patch) }

// AtLeast reports whether the server is of this release series or a later one.
func (v Version) AtLeast(major, minor int) bool {
	return v.Major > major || v.Major == major && v.Minor >= minor
}

func readVersion(ctx context.Context, client *mongo.Client) (Version, error) {
	var reply struct {
		// Major, minor, patch, and a fourth that counts release candidates.
		VersionArray []int `bson:"versionArray"`
	}
	if err := client.Database("admin").RunCommand(ctx, bson.D{{Key: "buildInfo", Value: 1}}).Decode(&reply); err != nil {
		return Version{}, fmt.Errorf("read the server's version: %w", err)
	}
	n := reply.VersionArray
	if len(n) < 3 {
		return Version{}, fmt.Errorf("read the server's version: versionArray is %v", n)
	}
	return Version{n[0], n[1], n[2]}, nil
}
