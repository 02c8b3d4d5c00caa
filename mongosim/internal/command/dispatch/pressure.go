package dispatch

import "go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

// Pressure is the load that serverStatus reports, for tools that watch it.
// Nothing becomes slower.
type Pressure struct {
	// Lagged is true while flow control slows a primary's writers, as the
	// majority does not keep up; LaggedCount counts these times.
	Lagged      bool
	LaggedCount int32
	// CacheUsed and CacheDirty are fractions of the configured cache, 0 to 1.
	// Zero shows the real values: all data, and nothing dirty.
	CacheUsed, CacheDirty float64
	// EvictingThreads counts how often client threads had to evict pages
	// themselves.
	EvictingThreads int64
	// WriteTickets and ReadTickets are in use, of 128 each.
	WriteTickets, ReadTickets int32
}

// SetPressure changes the load that serverStatus reports; the zero value
// reports the real one.
func (s *Server) SetPressure(p Pressure) { s.pressure.Store(&p) }

// PressureNow returns the pressure that serverStatus reports.
func (s *Server) PressureNow() Pressure {
	if p := s.pressure.Load(); p != nil {
		return *p
	}
	return Pressure{}
}

// AppendFlowControl appends the state of flow control, which does not exist here but may
// be simulated.
func (r *Request) AppendFlowControl(buf []byte) []byte {
	p := r.Server.PressureNow()
	on := p.Lagged || p.LaggedCount > 0
	limit := int32(1_000_000_000)
	if p.Lagged {
		limit = 100
	}
	buf = bsoncore.AppendBooleanElement(buf, "enabled", on)
	buf = bsoncore.AppendInt32Element(buf, "targetRateLimit", limit)
	buf = bsoncore.AppendInt64Element(buf, "timeAcquiringMicros", 0)
	buf = bsoncore.AppendBooleanElement(buf, "isLagged", p.Lagged)
	buf = bsoncore.AppendInt32Element(buf, "isLaggedCount", p.LaggedCount)
	return bsoncore.AppendInt64Element(buf, "isLaggedTimeMicros", 0)
}

// AppendCache appends the cache statistics used to observe pressure: all data
// is in it, and nothing is ever dirty, unless simulated.
func (p *Pressure) AppendCache(buf []byte, used int64) []byte {
	most := max(MemoryBytes(), 2*used)
	if p.CacheUsed > 0 {
		used = int64(p.CacheUsed * float64(most))
	}
	buf = bsoncore.AppendInt64Element(buf, "bytes currently in the cache", used)
	buf = bsoncore.AppendInt64Element(buf, "maximum bytes configured", most)
	if p.EvictingThreads > 0 {
		buf = bsoncore.AppendInt64Element(buf, "pages evicted by application threads", p.EvictingThreads)
	}
	return bsoncore.AppendInt64Element(buf, "tracked dirty bytes in the cache", int64(p.CacheDirty*float64(most)))
}
