package report

import "github.com/oplogrep/replicator/bench/result"

// Write draws reports into a folder: index.html, which needs nothing but the files
// beside it, and each chart as SVG and PNG: throughput against writers, batch size,
// document size and namespaces; goals; latencies. A chart that the reports have no
// runs for is left out. It returns the files it wrote.
func Write(folder string, reports []*result.Report) (files []string, err error) {
	panic("not written yet")
}
