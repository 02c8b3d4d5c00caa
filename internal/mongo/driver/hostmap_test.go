package driver

import "testing"

func TestHostMap(t *testing.T) {
	d := &dialer{hosts: map[string]string{"db1:27017": "localhost:37017", "db2": "10.0.0.2", "db3": "[::1]:5", "db4": "::1", "db5:1": "h"}}
	for addr, want := range map[string]string{
		"db1:27017":   "localhost:37017",
		"DB1:27017":   "localhost:37017",
		"db1:27018":   "db1:27018",
		"db2:27019":   "10.0.0.2:27019",
		"db3:27017":   "[::1]:5",
		"db4:27017":   "[::1]:27017",
		"db5:1":       "h:1",
		"other:27017": "other:27017",
		"/tmp/A.sock": "/tmp/A.sock",
	} {
		if got := d.address(addr); got != want {
			t.Errorf("%s: got %s, want %s", addr, got, want)
		}
	}
	for _, bad := range []map[string]string{{"": "a"}, {"a": ""}} {
		if _, err := Parse(Config{URI: "mongodb://a", HostMap: bad}); err == nil {
			t.Errorf("%v was taken", bad)
		}
	}
	o, err := Parse(Config{URI: "mongodb://a/?directConnection=true"})
	if err != nil || !o.Direct() {
		t.Errorf("direct: %v, %v", o.Direct(), err)
	}
	for _, uri := range []string{"mongodb://a/?directConnection=false", "mongodb://a", "mongodb://a/?replicaSet=s"} {
		if o, err := Parse(Config{URI: uri}); err != nil || o.Direct() {
			t.Errorf("%s: direct, %v", uri, err)
		}
	}
}
