package web

import "github.com/prometheus/client_golang/prometheus"

// metrics are those of the server.
type metrics struct {
	refused *prometheus.CounterVec
	dropped prometheus.Counter
}

func newMetrics(r prometheus.Registerer, s *streams) (metrics, error) {
	m := metrics{
		refused: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "replicator_http_refused_total", Help: "Requests over HTTP that were refused, for their token, origin, host, path, type or body, for what they ask for (request, range), or as too many (busy, streams).",
		}, []string{"why"}),
		dropped: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "replicator_http_streams_dropped_total", Help: "Streams of /events that were ended because the client had gone, or did not read them.",
		}),
	}
	if r == nil {
		return m, nil
	}
	for _, c := range []prometheus.Collector{
		m.refused, m.dropped,
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "replicator_http_streams", Help: "Streams of /events."}, s.open),
	} {
		if err := r.Register(c); err != nil {
			return m, err
		}
	}
	return m, nil
}
