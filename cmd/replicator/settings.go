package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"

	"github.com/alecthomas/kong"
	"go.yaml.in/yaml/v3"
)

// envPrefix begins the environment variables that stand for flags.
const envPrefix = "REPLICATOR_"

// configFile is the flag that names a file of settings. It is read before the
// other flags get their values.
type configFile string

// BeforeResolve is called by kong where the flag is on the command line.
//
//nolint:unparam // Kong calls it, and wants an error of it.
func (configFile) BeforeResolve(ctx *kong.Context, trace *kong.Path, s *settings) error {
	name, _ := ctx.FlagValue(trace.Flag).(configFile)
	s.file = string(name)
	return nil
}

// settings finds the values of flags that are not on the command line. The one
// rule of precedence is: flag, then environment, then file, then default. It holds
// for the flags of run, and for flags of other commands that run has too.
type settings struct {
	environ []string
	file    string
	known   map[string]bool

	loaded bool
	fault  error // of the file
	values map[string]*yaml.Node
	origin map[string]string // by flag
}

var _ kong.Resolver = (*settings)(nil)

func newSettings(environ []string) *settings {
	return &settings{environ: environ, known: map[string]bool{}, values: map[string]*yaml.Node{}, origin: map[string]string{}}
}

// envName returns the variable that stands for a flag.
func envName(flag string) string {
	return envPrefix + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

func (s *settings) env(flag string) (string, bool) { return lookup(s.environ, flag) }

// lookup looks the variable of a flag up. An empty one counts as not set.
func lookup(environ []string, flag string) (string, bool) {
	for _, pair := range slices.Backward(environ) {
		if value, ok := strings.CutPrefix(pair, envName(flag)+"="); ok {
			return value, value != ""
		}
	}
	return "", false
}

// strays returns the variables with our prefix that stand for no flag.
func (s *settings) strays() []string {
	var names []string
	for _, pair := range s.environ {
		name, _, _ := strings.Cut(pair, "=")
		if strings.HasPrefix(name, envPrefix) && name != envName(tokenVariable) && !slices.ContainsFunc(s.flags(), func(f string) bool { return envName(f) == name }) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

func (s *settings) flags() []string {
	names := make([]string, 0, len(s.known))
	for name := range s.known {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// Validate implements kong.Resolver. It is called when all flags are resolved.
func (s *settings) Validate(*kong.Application) error { return s.fault }

// learn collects the flags that have settings.
func (s *settings) learn(app *kong.Application) {
	for _, node := range app.Children {
		if node.Name != "run" {
			continue
		}
		for _, f := range node.Flags {
			// These apply to one command line only.
			if !slices.Contains([]string{"help", "check", "print-config"}, f.Name) {
				s.known[f.Name] = true
			}
		}
	}
}

// Resolve implements kong.Resolver.
func (s *settings) Resolve(ctx *kong.Context, _ *kong.Path, flag *kong.Flag) (any, error) {
	if len(s.known) == 0 {
		s.learn(ctx.Model)
	}
	if !s.known[flag.Name] || flag.Tag.Get("settings") == "no" {
		return nil, nil
	}
	if flag.Name == "config" {
		name, ok := s.env("config")
		if ok && s.file == "" {
			s.file = name
			s.origin["config"] = "environment " + envName("config")
		}
		if !ok {
			return nil, nil
		}
		return name, nil
	}
	if text, ok := s.env(flag.Name); ok {
		value, err := fromEnv(text, flag)
		return s.take(flag, value, "environment "+envName(flag.Name), err)
	}
	if !s.loaded {
		// An error of the file must not be reported as one of the first flag.
		s.loaded = true
		if s.fault = s.load(ctx); s.fault != nil {
			clear(s.values)
		}
	}
	node, ok := s.values[flag.Name]
	if !ok {
		return nil, nil
	}
	value, err := fromNode(node, flag)
	return s.take(flag, value, fmt.Sprintf("%s line %d", s.file, node.Line), err)
}

// take tries a value, and notes where it stands.
func (s *settings) take(flag *kong.Flag, value any, origin string, err error) (any, error) {
	if err = try(flag, value, err); err != nil {
		return nil, fmt.Errorf("%s: %w", origin, err)
	}
	s.origin[flag.Name] = origin
	return value, nil
}

// try tries a value, so that an error can say where it stands.
func try(flag *kong.Flag, value any, err error) error {
	if err == nil {
		trial := reflect.New(flag.Target.Type()).Elem()
		err = flag.Mapper.Decode(&kong.DecodeContext{Value: flag.Value, Scan: kong.Scan().PushTyped(value, kong.FlagValueToken)}, trial)
	}
	if text, ok := value.(string); ok && err == nil && flag.Enum != "" && !slices.Contains(flag.EnumSlice(), text) {
		err = fmt.Errorf("%q is not one of %s", text, strings.Join(flag.EnumSlice(), ", "))
	}
	return err
}

// fromEnv reads the value of a variable. A list is separated by commas, or is a
// list as YAML writes it: [a, "b,c"].
func fromEnv(text string, flag *kong.Flag) (any, error) {
	if !flag.IsSlice() {
		return text, nil
	}
	if strings.HasPrefix(text, "[") {
		top, err := oneDocument([]byte(text))
		if err != nil || top == nil {
			return nil, errors.New("the list is not valid YAML")
		}
		return fromNode(top, flag)
	}
	var list []any
	for item := range strings.SplitSeq(text, ",") {
		list = append(list, strings.TrimSpace(item))
	}
	return list, nil
}

func fromNode(node *yaml.Node, flag *kong.Flag) (any, error) {
	if err := unambiguous(node); err != nil {
		return nil, err
	}
	switch {
	case node.Kind == yaml.ScalarNode && node.Tag != "!!null" && flag.IsSlice():
		return []any{node.Value}, nil
	case node.Kind == yaml.ScalarNode && node.Tag != "!!null":
		return node.Value, nil
	case node.Kind == yaml.SequenceNode && flag.IsSlice():
		list := []any{}
		for _, item := range node.Content {
			if item.Kind != yaml.ScalarNode || item.Tag == "!!null" {
				return nil, fmt.Errorf("an element in line %d is not a string", item.Line)
			}
			if err := unambiguous(item); err != nil {
				return nil, err
			}
			list = append(list, item.Value)
		}
		return list, nil
	case flag.IsSlice():
		return nil, errors.New("expected a list")
	}
	return nil, errors.New("expected one value")
}

// octal matches a whole number that YAML 1.1 reads as octal and YAML 1.2 as decimal.
var octal = regexp.MustCompile(`^[-+]?0[0-9_]+$`)

// unambiguous returns an error for a plain scalar that two versions of YAML read
// as two values: 010 is 8 to one and 10 to the other.
func unambiguous(node *yaml.Node) error {
	const quoted = yaml.SingleQuotedStyle | yaml.DoubleQuotedStyle | yaml.LiteralStyle | yaml.FoldedStyle
	if node.Kind == yaml.ScalarNode && node.Style&quoted == 0 && octal.MatchString(node.Value) {
		return fmt.Errorf("%s is octal to some readers of YAML and decimal to others: write it without the leading zero, or in quotes if it is a string", node.Value)
	}
	return nil
}

// oneDocument returns the top node of YAML text, nil if there is nothing in it. A
// second document is an error: ignoring it could ignore an exclusion.
func oneDocument(data []byte) (*yaml.Node, error) {
	d := yaml.NewDecoder(bytes.NewReader(data))
	var doc, second yaml.Node
	switch err := d.Decode(&doc); {
	case errors.Is(err, io.EOF):
		return nil, nil
	case err != nil:
		return nil, err
	}
	switch err := d.Decode(&second); {
	case err == nil:
		return nil, fmt.Errorf("line %d: a second document starts here, and settings are one document: remove the line with ---", second.Line)
	case !errors.Is(err, io.EOF):
		return nil, err
	}
	return doc.Content[0], nil
}

// load reads the file. Its keys are the names of flags.
func (s *settings) load(ctx *kong.Context) error {
	if s.file == "" {
		// The variable may not have been resolved yet, nor belong to the command.
		name, ok := s.env("config")
		if !ok || ctx.Selected() == nil || ctx.Selected().Name != "run" {
			return nil
		}
		s.file = name
	}
	data, err := os.ReadFile(s.file)
	if err != nil {
		if e, ok := errors.AsType[*fs.PathError](err); ok {
			err = e.Err
		}
		return fmt.Errorf("read the settings in %s: %w", s.file, err)
	}
	top, err := oneDocument(data)
	if err != nil {
		return fmt.Errorf("read the settings in %s: %w", s.file, err)
	}
	if top == nil {
		return nil
	}
	if top.Kind != yaml.MappingNode {
		return fmt.Errorf("read the settings in %s: line %d: want lines of the form NAME: VALUE", s.file, top.Line)
	}
	var faults []error
	for i := 0; i+1 < len(top.Content); i += 2 {
		key, value := top.Content[i], top.Content[i+1]
		switch {
		case key.Value == "config":
			faults = append(faults, fmt.Errorf("%s line %d: a settings file cannot name another one", s.file, key.Line))
		case !s.known[key.Value]:
			faults = append(faults, fmt.Errorf("%s line %d: there is no setting %q%s", s.file, key.Line, key.Value, meant(key.Value, s.flags())))
		case s.values[key.Value] != nil:
			faults = append(faults, fmt.Errorf("%s line %d: %q is set twice, first in line %d", s.file, key.Line, key.Value, s.values[key.Value].Line))
		default:
			s.values[key.Value] = value
		}
	}
	return errors.Join(faults...)
}

// meant suggests the most similar of the names in place of one that does not exist.
func meant(name string, names []string) string {
	plain := func(s string) string { return strings.ToLower(strings.NewReplacer("-", "", "_", "").Replace(s)) }
	best, least := "", 3
	for _, f := range names {
		if d := distance(plain(f), plain(name)); d < least {
			best, least = f, d
		}
	}
	if best == "" {
		return ""
	}
	return fmt.Sprintf("; did you mean %q?", best)
}

// distance counts the letters to insert, remove or change to get from a to b.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		above := row[0]
		row[0] = i + 1
		for j := range len(b) {
			change := above
			if a[i] != b[j] {
				change++
			}
			above = row[j+1]
			row[j+1] = min(change, above+1, row[j]+1)
		}
	}
	return row[len(b)]
}
