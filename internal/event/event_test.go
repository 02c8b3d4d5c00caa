package event_test

import (
	"errors"
	"log/slog"
	"testing"

	"github.com/oplogrep/replicator/internal/event"
)

const keyHost, keyError = "host", "error"

func TestLog(t *testing.T) {
	var got event.Event
	o := event.Observer(func(e event.Event) { got = e })
	o.Log(slog.LevelWarn, "member unusable", slog.String(keyHost, "a:1"), slog.Any(keyError, errors.New("refused")))
	if got.Level() != slog.LevelWarn || got.Message() != "member unusable" || got.LogValue().String() != "[host=a:1 error=refused]" {
		t.Errorf("%s %q %s", got.Level(), got.Message(), got.LogValue())
	}
	if v := event.Attr(got, keyHost); v.String() != "a:1" {
		t.Errorf("host is %s", v)
	}
	if v := event.Attr(got, "port"); !v.Equal(slog.Value{}) {
		t.Errorf("port is %s", v)
	}
}

func TestNilObserver(*testing.T) {
	var o event.Observer
	o.Tell(event.NewLine(slog.LevelInfo, "x"))
	o.Log(slog.LevelInfo, "x")
}
