package history

import "math"

// Series is a figure that is kept.
type Series int

// The figures. Seconds and bytes are what their names say.
const (
	LagSeconds Series = iota
	OldestUnappliedSeconds
	LatencyP50Seconds
	LatencyP95Seconds
	LatencyP99Seconds
	InsertsPerSecond
	UpdatesPerSecond
	DeletesPerSecond
	CommandsPerSecond
	BytesPerSecond
	BufferBytes
	SpoolBytes
	OplogWindowSeconds
	CopyDocs
	CopyBytes
	CopyEtaSeconds
	// Count is the number of figures.
	Count
)

// reduction says what a step keeps of its samples.
type reduction int

const (
	largest reduction = iota
	least
	mean
	latest
)

// figures are the names of the series, and how they are reduced.
var figures = [Count]struct {
	name string
	by   reduction
}{
	LagSeconds:             {"lagSeconds", largest},
	OldestUnappliedSeconds: {"oldestUnappliedSeconds", largest},
	LatencyP50Seconds:      {"latencyP50Seconds", largest},
	LatencyP95Seconds:      {"latencyP95Seconds", largest},
	LatencyP99Seconds:      {"latencyP99Seconds", largest},
	InsertsPerSecond:       {"insertsPerSecond", mean},
	UpdatesPerSecond:       {"updatesPerSecond", mean},
	DeletesPerSecond:       {"deletesPerSecond", mean},
	CommandsPerSecond:      {"commandsPerSecond", mean},
	BytesPerSecond:         {"bytesPerSecond", mean},
	BufferBytes:            {"bufferBytes", largest},
	SpoolBytes:             {"spoolBytes", largest},
	OplogWindowSeconds:     {"oplogWindowSeconds", least},
	CopyDocs:               {"copyDocs", latest},
	CopyBytes:              {"copyBytes", latest},
	CopyEtaSeconds:         {"copyEtaSeconds", latest},
}

// String returns the name of a series.
func (s Series) String() string { return figures[s].name }

// Values is a sample: a value for each series, NaN if it is not known. None is negative.
type Values [Count]float64

// Unknown returns a sample of which nothing is known.
func Unknown() Values {
	var v Values
	for i := range v {
		v[i] = math.NaN()
	}
	return v
}

// Set sets a value that is known, which nil is not.
func (v *Values) Set(s Series, value *float64) {
	if value != nil {
		v[s] = *value
	}
}
