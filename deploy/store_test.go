package deploy

import (
	"context"
	"errors"
	"math"
	"slices"

	"github.com/prometheus/prometheus/model/histogram"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/value"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb/chunkenc"
	"github.com/prometheus/prometheus/tsdb/chunks"
	"github.com/prometheus/prometheus/util/annotations"
)

// store has series in memory. It is not safe for concurrent use.
type store struct {
	series []*series
	by     map[string]*series
	names  map[string]bool
}

type series struct {
	labels  labels.Labels
	samples []chunks.Sample
}

// sample is a value at a time in milliseconds.
type sample struct {
	at    int64
	value float64
}

func (s sample) T() int64                      { return s.at }
func (s sample) ST() int64                     { return 0 }
func (s sample) F() float64                    { return s.value }
func (s sample) H() *histogram.Histogram       { return nil }
func (s sample) FH() *histogram.FloatHistogram { return nil }
func (s sample) Type() chunkenc.ValueType      { return chunkenc.ValFloat }
func (s sample) Copy() chunks.Sample           { return s }

func newStore() *store { return &store{by: map[string]*series{}, names: map[string]bool{}} }

// has reports whether there is a series of a metric.
func (s *store) has(metric string) bool { return s.names[metric] }

// add appends a sample. Samples of a series are added in the order of time.
func (s *store) add(l labels.Labels, at int64, v float64) {
	key := l.String()
	one := s.by[key]
	if one == nil {
		one = &series{labels: l}
		s.by[key], s.series, s.names[l.Get(labels.MetricName)] = one, append(s.series, one), true
	}
	one.samples = append(one.samples, sample{at, v})
}

// stale ends a series.
func (s *store) stale(l labels.Labels, at int64) { s.add(l, at, math.Float64frombits(value.StaleNaN)) }

// load adds a series in the notation of Prometheus's rule unit tests, with a sample each interval.
func (s *store) load(desc, values string, interval int64) error {
	l, list, err := parsing.ParseSeriesDesc(desc + " " + values)
	if err != nil {
		return err
	}
	for i, v := range list {
		if !v.Omitted {
			s.add(l, int64(i)*interval, v.Value)
		}
	}
	return nil
}

var parsing = parser.NewParser(parser.Options{})

// Querier implements storage.Queryable.
func (s *store) Querier(mint, maxt int64) (storage.Querier, error) {
	return querier{s, mint, maxt}, nil
}

type querier struct {
	*store
	mint, maxt int64
}

func (q querier) Select(_ context.Context, _ bool, _ *storage.SelectHints, matchers ...*labels.Matcher) storage.SeriesSet {
	set := &found{at: -1}
	for _, one := range q.series {
		if slices.ContainsFunc(matchers, func(m *labels.Matcher) bool { return !m.Matches(one.labels.Get(m.Name)) }) {
			continue
		}
		from, _ := slices.BinarySearchFunc(one.samples, q.mint, func(s chunks.Sample, at int64) int { return int(s.T() - at) })
		to, _ := slices.BinarySearchFunc(one.samples, q.maxt+1, func(s chunks.Sample, at int64) int { return int(s.T() - at) })
		if from < to {
			set.list = append(set.list, storage.NewListSeries(one.labels, one.samples[from:to]))
		}
	}
	return set
}

var errNames = errors.New("only series can be selected")

func (querier) LabelValues(context.Context, string, *storage.LabelHints, ...*labels.Matcher) ([]string, annotations.Annotations, error) {
	return nil, nil, errNames
}

func (querier) LabelNames(context.Context, *storage.LabelHints, ...*labels.Matcher) ([]string, annotations.Annotations, error) {
	return nil, nil, errNames
}

func (querier) Close() error { return nil }

// found is a storage.SeriesSet.
type found struct {
	list []storage.Series
	at   int
}

func (f *found) Next() bool                        { f.at++; return f.at < len(f.list) }
func (f *found) At() storage.Series                { return f.list[f.at] }
func (f *found) Err() error                        { return nil }
func (f *found) Warnings() annotations.Annotations { return nil }
