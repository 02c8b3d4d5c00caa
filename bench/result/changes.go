package result

import (
	"fmt"
	"io"
	"math"
	"strings"
)

// WriteChanges prints changes as text, the worse ones first.
func WriteChanges(w io.Writer, changes []Change) error {
	var out strings.Builder
	var notes, rows [][]string
	worse := 0
	for _, c := range changes {
		if c.Worse {
			worse++
		}
	}
	for _, worseOnes := range []bool{true, false} {
		for _, c := range changes {
			switch {
			case c.Worse != worseOnes:
			case c.Uncompared:
				notes = append(notes, []string{verdict(c.Worse), c.Name, c.Figure, c.Note})
			default:
				rows = append(rows, []string{verdict(c.Worse), c.Name, c.Figure, Figure(c.Old), Figure(c.New), percent(c.Old, c.New), c.Note})
			}
		}
	}
	switch {
	case len(changes) == 0:
		out.WriteString("nothing differs\n")
	case worse == 0:
		out.WriteString("nothing is worse than the limits allow\n")
	default:
		fmt.Fprintf(&out, "worse than the limits allow: %d of %d that differ\n", worse, len(changes))
	}
	if len(notes) > 0 {
		out.WriteString("\n")
		grid(&out, []column{{}, {title: "not compared", most: 38}, {}, {title: "why", most: 60}}, notes)
	}
	if len(rows) > 0 {
		out.WriteString("\n")
		grid(&out, []column{
			{},
			{title: "compared", most: 36},
			{title: "figure", most: 18},
			{title: "old", right: true},
			{title: "new", right: true},
			{title: "change", right: true},
			{most: 22},
		}, rows)
	}
	if _, err := io.WriteString(w, out.String()); err != nil {
		return fmt.Errorf("print what differs: %w", err)
	}
	return nil
}

func verdict(worse bool) string {
	if worse {
		return "WORSE"
	}
	return ""
}

// percent is how much it grew; empty where that has no meaning.
func percent(old, now float64) string {
	if old <= 0 || now < 0 {
		return ""
	}
	p := 100 * (now/old - 1)
	if math.Abs(p) >= 999.5 {
		return "×" + Figure(now/old)
	}
	return fmt.Sprintf("%+.1f %%", p)
}
