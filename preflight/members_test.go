package preflight_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/preflight"
	"github.com/oplogrep/replicator/scope"
)

// away is a set whose members are unreachable, although the connection works.
type away struct{ silent bool }

func (a away) Hosts() []string { return []string{"a.invalid:27017", "b.invalid:27017"} }
func (a away) Direct() bool    { return false }

func (a away) Member(host string) mongo.Caller { return awayMember{a, host} }

type awayMember struct {
	away
	host string
}

func (m awayMember) Call(ctx context.Context, _ mongo.Command) (bson.Raw, error) {
	if m.silent {
		<-ctx.Done()
		return nil, context.Cause(ctx)
	}
	return nil, &mongo.LostError{Host: m.host, Err: errors.New("lookup " + m.host + ": no such host")}
}

// If the link would wait for members forever, the check fails.
func TestMembersAway(t *testing.T) {
	for name, set := range map[string]away{"not found": {}, "silent": {silent: true}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, err := scope.New(scope.Config{})
				if err != nil {
					t.Fatal(err)
				}
				began := time.Now()
				report, err := preflight.Run(t.Context(), preflight.Config{
					Source: newServer(t, "source"), Target: newServer(t, "target"), Members: set, Scope: s, Link: "l",
				}, nil)
				if err != nil {
					t.Fatal(err)
				}
				if took := time.Since(began); took > 20*time.Second {
					t.Errorf("it took %s", took)
				}
				for _, f := range report.Findings {
					if f.Check == "source members" {
						if f.Level != preflight.Fail || !strings.Contains(f.String(), "a.invalid:27017") || !strings.Contains(f.Do, "--source-host-map") {
							t.Errorf("got %s", f)
						}
						return
					}
				}
				t.Error("the members were not checked")
			})
		})
	}
}
