package scope

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"regexp"
	"regexp/syntax"
	"slices"
	"unicode"
	"unicode/utf8"
)

// expression is a regular expression that matches whole namespaces.
//
// Apart from matching one namespace, it has to decide whether any collection of a
// database can match, and whether every one does. So the expression's program is run on
// sets of its states. Whether an assertion (a word boundary, the beginning of a line)
// holds depends on the characters around it, which are not examined: it is assumed to
// hold when the question is whether something can match, and not to hold when it is
// whether everything does.
type expression struct {
	re   *regexp.Regexp
	prog *syntax.Prog
}

func parseExpression(text string) (*expression, error) {
	// Parsed separately first: otherwise its parentheses might balance with the added
	// ones.
	if _, err := syntax.Parse(text, syntax.Perl); err != nil {
		return nil, plainSyntax(err)
	}
	whole := `(?s)\A(?:` + text + `)\z`
	re, err := regexp.Compile(whole)
	if err != nil {
		return nil, plainSyntax(err)
	}
	tree, err := syntax.Parse(whole, syntax.Perl)
	if err != nil {
		return nil, plainSyntax(err)
	}
	prog, err := syntax.Compile(tree.Simplify())
	if err != nil {
		return nil, plainSyntax(err)
	}
	x := &expression{re: re, prog: prog}
	if !x.mayMatch() {
		return nil, errors.New("no namespace can match: the expression has to match DB.COLLECTION from beginning to end")
	}
	return x, nil
}

func plainSyntax(err error) error {
	if e, ok := errors.AsType[*syntax.Error](err); ok {
		return fmt.Errorf("%s: %q", e.Code, e.Expr)
	}
	return err
}

func (x *expression) match(ns string) bool { return x.re.MatchString(ns) }

// states are states of the program, ascending, before empty transitions have been
// followed.
type states []uint32

func (x *expression) start() states { return states{uint32(x.prog.Start)} }

// around is the knowledge about a position between characters.
type around struct {
	begin, end bool
	// otherwise is the answer for unknown assertions.
	otherwise bool
}

func (a around) holds(op syntax.EmptyOp) bool {
	if op&syntax.EmptyBeginText != 0 && !a.begin || op&syntax.EmptyEndText != 0 && !a.end {
		return false
	}
	if a.begin {
		op &^= syntax.EmptyBeginLine
	}
	if a.end {
		op &^= syntax.EmptyEndLine
	}
	return op&^(syntax.EmptyBeginText|syntax.EmptyEndText) == 0 || a.otherwise
}

// reach follows empty transitions. It returns the states that wait for a character, and
// reports whether the end was reached.
func (x *expression) reach(from states, a around) (waiting states, matched bool) {
	seen := make([]bool, len(x.prog.Inst))
	stack := slices.Clone(from)
	for len(stack) > 0 {
		pc := stack[len(stack)-1]
		stack = stack[:len(stack)-1]
		if seen[pc] {
			continue
		}
		seen[pc] = true
		switch inst := &x.prog.Inst[pc]; inst.Op {
		case syntax.InstAlt, syntax.InstAltMatch:
			stack = append(stack, inst.Out, inst.Arg)
		case syntax.InstCapture, syntax.InstNop:
			stack = append(stack, inst.Out)
		case syntax.InstEmptyWidth:
			if a.holds(syntax.EmptyOp(inst.Arg)) {
				stack = append(stack, inst.Out)
			}
		case syntax.InstMatch:
			matched = true
		case syntax.InstFail:
		default:
			waiting = append(waiting, pc)
		}
	}
	return waiting, matched
}

// accepts reports whether the text may end in these states.
func (x *expression) accepts(from states, otherwise bool) bool {
	_, matched := x.reach(from, around{end: true, otherwise: otherwise})
	return matched
}

// step consumes a character.
func (x *expression) step(from states, a around, r rune) states {
	waiting, _ := x.reach(from, a)
	return x.take(waiting, r)
}

// take returns the states that follow those of waiting that accept a character.
func (x *expression) take(waiting states, r rune) states {
	var next states
	for _, pc := range waiting {
		if inst := &x.prog.Inst[pc]; inst.MatchRune(r) {
			next = append(next, inst.Out)
		}
	}
	slices.Sort(next)
	return slices.Compact(next)
}

// after returns the states after a prefix of the text.
func (x *expression) after(prefix string, otherwise bool) states {
	at := x.start()
	for i, r := range prefix {
		at = x.step(at, around{begin: i == 0, otherwise: otherwise}, r)
	}
	return at
}

// mayMatchIn reports whether the expression matches some collection of db.
func (x *expression) mayMatchIn(db string) bool {
	return x.mayGoOn(x.after(db+".", true))
}

// mayGoOn reports whether a non-empty text leads from these states to a match.
func (x *expression) mayGoOn(from states) bool {
	seen := make([]bool, len(x.prog.Inst))
	for len(from) > 0 {
		waiting, _ := x.reach(from, around{otherwise: true})
		from = nil
		for _, pc := range waiting {
			if inst := &x.prog.Inst[pc]; !seen[pc] && len(inst.Rune) > 0 {
				seen[pc] = true
				from = append(from, inst.Out)
			}
		}
		if x.accepts(from, true) {
			return true
		}
	}
	return false
}

// mayMatch reports whether the expression matches some namespace at all.
func (x *expression) mayMatch() bool {
	seen := make([]bool, len(x.prog.Inst))
	at := x.start()
	for first := true; len(at) > 0; first = false {
		a := around{begin: first, otherwise: true}
		if !first && x.mayGoOn(x.step(at, a, '.')) {
			return true
		}
		waiting, _ := x.reach(at, a)
		at = nil
		for _, pc := range waiting {
			if inst := &x.prog.Inst[pc]; !seen[pc] && takesOther(inst, '.') {
				seen[pc] = true
				at = append(at, inst.Out)
			}
		}
	}
	return false
}

// takesOther reports whether an instruction accepts a character other than not.
func takesOther(inst *syntax.Inst, not rune) bool {
	return slices.ContainsFunc(classes(nil, inst), func(r rune) bool { return r != not && inst.MatchRune(r) })
}

// maxWork limits the search of cover, in instructions tried: beyond it, after about 20
// ms, the question remains undecided.
const maxWork = 1 << 19

// cover reports whether the expression matches every collection of db. If that is
// undecided it returns false.
func (x *expression) cover(db string) bool {
	todo := []states{x.after(db+".", false)}
	seen := map[string]bool{}
	for work := 0; len(todo) > 0; {
		waiting, _ := x.reach(todo[len(todo)-1], around{})
		todo = todo[:len(todo)-1]
		var runes []rune
		for _, pc := range waiting {
			runes = classes(runes, &x.prog.Inst[pc])
		}
		slices.Sort(runes)
		// A character that no state distinguishes stands for all others.
		for _, r := range slices.Compact(append(runes, utf8.MaxRune)) {
			next := x.take(waiting, r)
			work += len(waiting)
			k := key(next)
			if seen[k] {
				continue
			}
			seen[k] = true
			work += len(x.prog.Inst)
			if work > maxWork || !x.accepts(next, false) {
				return false
			}
			todo = append(todo, next)
		}
	}
	return true
}

func key(s states) string {
	var b []byte
	for _, pc := range s {
		b = binary.LittleEndian.AppendUint32(b, pc)
	}
	return string(b)
}

// classes appends one character of each run of characters that an instruction does not
// distinguish: the bounds of its ranges.
func classes(runes []rune, inst *syntax.Inst) []rune {
	add := func(r rune) {
		if r <= unicode.MaxRune {
			runes = append(runes, r)
		}
	}
	add(1)
	if len(inst.Rune) == 1 {
		r := inst.Rune[0]
		add(r)
		add(r + 1)
		if syntax.Flags(inst.Arg)&syntax.FoldCase == 0 {
			return runes
		}
		for f := unicode.SimpleFold(r); f != r && f != math.MaxInt32; f = unicode.SimpleFold(f) {
			add(f)
			add(f + 1)
		}
		return runes
	}
	for i := 0; i+1 < len(inst.Rune); i += 2 {
		add(max(1, inst.Rune[i]))
		add(inst.Rune[i+1] + 1)
	}
	return runes
}
