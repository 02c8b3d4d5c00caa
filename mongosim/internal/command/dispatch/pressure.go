package dispatch

import "go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

// Pressure is what serverStatus says of a server that has too much to do, for
// tools that watch it. Nothing gets slower by it.
type Pressure struct {
	// Lagged tells that flow control slows the writers of a primary down, as the
	// majority does not keep up; LaggedCount is how often it had to so far.
	Lagged      bool
	LaggedCount int32
	// CacheUsed and CacheDirty are parts of the configured cache, 0 to 1. Zero is
	// what there is: all data, and nothing dirty.
	CacheUsed, CacheDirty float64
	// EvictingThreads is how often threads of clients had to make room in the cache
	// themselves so far.
	EvictingThreads int64
	// WriteTickets and ReadTickets are in use, of 128 each.
	WriteTickets, ReadTickets int32
}

// SetPressure changes what serverStatus says; the zero value is the truth.
func (s *Server) SetPressure(p Pressure) { s.pressure.Store(&p) }

// PressureNow returns the pressure that serverStatus reports.
func (s *Server) PressureNow() Pressure {
	if p := s.pressure.Load(); p != nil {
		return *p
	}
	return Pressure{}
}

// AppendFlowControl appends the state of the server's brake on primaries that are ahead of
// the majority: there is none here, but one may be shown.
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

// AppendCache appends what is read of the cache to watch its pressure: all data
// is in it, and nothing in it is ever dirty, but for what is to be shown.
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
