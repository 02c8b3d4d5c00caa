package driver_test

import (
	"context"
	"testing"
	"time"

	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/driver"
	"github.com/oplogrep/replicator/internal/mongo/driver/drivertest"
	"github.com/oplogrep/replicator/internal/testkit/mongotest"
	"github.com/oplogrep/replicator/mongosim"
)

func TestConformance(t *testing.T) {
	for _, dialect := range []string{"4.4", "5.0", "8.0"} {
		t.Run(dialect, func(t *testing.T) {
			drivertest.Run(t, func(t *testing.T) drivertest.Deployment {
				set := calm(t, mongosim.Options{Members: 3, Dialect: dialect})
				s := open(t, driver.Config{URI: set.URI()})
				return drivertest.Deployment{Primary: s, Secondary: s.Member(other(t, set).Host()), StepDown: set.StepDown}
			})
		})
	}
}

// TestConformanceOfMember runs the suite on the direct connection to the primary.
func TestConformanceOfMember(t *testing.T) {
	drivertest.Run(t, func(t *testing.T) drivertest.Deployment {
		set := calm(t, mongosim.Options{Members: 1})
		return drivertest.Deployment{Primary: open(t, driver.Config{URI: set.URI()}).Member(set.Member(0).Host())}
	})
}

// TestConformanceWithLogin runs the suite with authentication and compression.
func TestConformanceWithLogin(t *testing.T) {
	drivertest.Run(t, func(t *testing.T) drivertest.Deployment {
		set := calm(t, mongosim.Options{Members: 3, Users: []mongosim.User{root}})
		s := open(t, driver.Config{
			URI: set.URI() + "&compressors=snappy,zstd,zlib", Username: root.Name, Password: root.Password,
		})
		return drivertest.Deployment{Primary: s, Secondary: s.Member(other(t, set).Host()), StepDown: set.StepDown}
	})
}

// TestConformanceOfServers runs the suite on real servers, if there are any.
func TestConformanceOfServers(t *testing.T) {
	t.Run("one member", func(t *testing.T) {
		mongotest.Versions(t, mongotest.Options{}, func(t *testing.T, rs *mongotest.ReplicaSet) {
			drivertest.Run(t, func(t *testing.T) drivertest.Deployment {
				return drivertest.Deployment{Primary: open(t, driver.Config{URI: rs.URI() + "&compressors=zstd"})}
			})
		})
	})
	t.Run("three members", func(t *testing.T) {
		mongotest.Versions(t, mongotest.Options{Members: 3}, func(t *testing.T, rs *mongotest.ReplicaSet) {
			drivertest.Run(t, func(t *testing.T) drivertest.Deployment {
				s := open(t, driver.Config{URI: rs.URI()})
				must(t, s, "ping", 1)
				d := drivertest.Deployment{Primary: s}
				primary, _ := s.Primary()
				for _, host := range s.Hosts() {
					if host != primary {
						d.Secondary = s.Member(host)
					}
				}
				d.StepDown = func(ctx context.Context) error {
					cmd := command(t, "replSetStepDown", 5, "secondaryCatchUpPeriodSecs", 4)
					cmd.DB = "admin"
					_, err := mongo.Caller(s).Call(ctx, cmd)
					return err
				}
				return d
			})
		})
	})
}

var root = mongosim.User{Name: "root", Password: "s3cr3t pass/word:@?", Roles: []mongosim.Role{{Name: "root", DB: "admin"}}}

// calm starts a set whose timeouts do not cause elections on a busy machine: with the race detector,
// members may be busy for seconds with a message of 40 MB.
func calm(t *testing.T, o mongosim.Options) *mongosim.Set {
	o.HeartbeatInterval, o.ElectionTimeout = 100*time.Millisecond, 20*time.Second
	return start(t, o)
}
