package preflight

import (
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/oplog"
)

// The window of the source's oplog against the position of a link that exists.
func TestWindowOfALink(t *testing.T) {
	const now = 1_700_000_000
	ago := func(d time.Duration) bson.Timestamp { return bson.Timestamp{T: now - uint32(d.Seconds()), I: 1} }
	for name, tt := range map[string]struct {
		oldest, from time.Duration
		level        Level
		detail       string
	}{
		"in the middle":       {48 * time.Hour, 24 * time.Hour, OK, "48h0m0s, since 2023-11-12T22:13:20Z; the link's entry is in it for about 24h0m0s more"},
		"nearly gone":         {48 * time.Hour, 47*time.Hour + 30*time.Minute, Warn, "48h0m0s, since 2023-11-12T22:13:20Z; if the oplog is full, the source deletes the entry from which the link resumes in about 30m0s"},
		"gone":                {48 * time.Hour, 49 * time.Hour, Warn, "48h0m0s, since 2023-11-12T22:13:20Z; it does not reach back to the link's position, 1699823600:1 t3"},
		"short, and just now": {20 * time.Minute, 0, Warn, "20m0s, since 2023-11-14T21:53:20Z"},
		"a moment ago":        {2 * time.Hour, time.Minute, OK, "2h0m0s, since 2023-11-14T20:13:20Z; the link's entry is in it for about 1h59m0s more"},
	} {
		t.Run(name, func(t *testing.T) {
			c := &checker{report: Report{Found: true, Link: checkpoint.State{FetchFrom: oplog.OpTime{TS: ago(tt.from), Term: 3}}}}
			c.judgeWindow("w", ago(tt.oldest), ago(0))
			if f := c.report.Findings[0]; len(c.report.Findings) != 1 || f.Level != tt.level || f.Detail != tt.detail || (f.Level == OK) != (f.Do == "") {
				t.Errorf("got %v", c.report.Findings)
			}
		})
	}
	for name, tt := range map[string]struct {
		phase        checkpoint.CopyPhase
		oldest, from time.Duration
		level        Level
		detail       string
	}{
		"copying":             {checkpoint.Copying, 48 * time.Hour, 24 * time.Hour, OK, "48h0m0s, since 2023-11-12T22:13:20Z; the copy may take longer, because the spool keeps the oplog meanwhile: only reading must not pause for that long"},
		"copying, and gone":   {checkpoint.Copying, 48 * time.Hour, 49 * time.Hour, Warn, "48h0m0s, since 2023-11-12T22:13:20Z; it does not reach back to 1699823600:1 t3, where the link's copy started"},
		"replaying, and gone": {checkpoint.Replaying, 48 * time.Hour, 49 * time.Hour, Warn, "48h0m0s, since 2023-11-12T22:13:20Z; it does not reach back to 1699823600:1 t3, where the link's copy started"},
		"copied, and gone":    {checkpoint.Copied, 48 * time.Hour, 49 * time.Hour, Warn, "48h0m0s, since 2023-11-12T22:13:20Z; it does not reach back to the link's position, 1699823600:1 t3"},
		"copying, and short":  {checkpoint.Copying, 20 * time.Minute, time.Minute, Warn, "20m0s, since 2023-11-14T21:53:20Z"},
	} {
		t.Run(name, func(t *testing.T) {
			c := &checker{report: Report{Found: true, Link: checkpoint.State{
				FetchFrom: oplog.OpTime{TS: ago(tt.from), Term: 3}, Copy: &checkpoint.Copy{Phase: tt.phase},
			}}}
			c.judgeWindow("w", ago(tt.oldest), ago(0))
			if f := c.report.Findings[0]; len(c.report.Findings) != 1 || f.Level != tt.level || f.Detail != tt.detail || (f.Level == OK) != (f.Do == "") {
				t.Errorf("got %v", c.report.Findings)
			}
		})
	}
	c := &checker{}
	if c.judgeWindow("w", bson.Timestamp{}, bson.Timestamp{}); c.report.Findings[0].Level != Fail {
		t.Errorf("an empty oplog: %v", c.report.Findings)
	}
}
