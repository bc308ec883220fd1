//! The modules of a crate, and which of them each one imports.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use proc_macro2::{Ident, TokenStream, TokenTree};
use quote::ToTokens;
use syn::{Attribute, Item, UseTree};

/// A module's path: the names from the root to it; empty for the root.
pub type Place = Vec<String>;

/// A path that a module names.
struct Import {
    /// The path as written, without a local alias: `["crate", "a", "B"]`.
    path: Vec<String>,
    line: usize,
}

/// One module, with or without its own file.
#[derive(Default)]
struct Module {
    file: PathBuf,
    imports: Vec<Import>,
    /// Names that `use` defines here, and their paths.
    names: BTreeMap<String, Vec<String>>,
    /// `use path::*`
    globs: Vec<Vec<String>>,
    /// Items that are defined here, except for modules.
    items: Vec<String>,
}

/// All modules of a crate, except for those that only tests use.
#[derive(Default)]
pub struct Modules(BTreeMap<Place, Module>);

/// The import of one module by another, and the place of the first such import.
#[derive(Debug)]
pub struct Edge {
    pub from: Place,
    pub to: Place,
    pub file: PathBuf,
    pub line: usize,
}

impl Modules {
    /// Reads a crate, from its root file on.
    pub fn read(root: &Path) -> Result<Self> {
        let mut modules = Self::default();
        modules.add_file(Vec::new(), root, root.parent().context("a file is in a folder")?)?;
        Ok(modules)
    }

    /// Adds the module in this file. Files of modules in it are in `folder`.
    fn add_file(&mut self, place: Place, file: &Path, folder: &Path) -> Result<()> {
        let text = std::fs::read_to_string(file)
            .with_context(|| format!("cannot read {}", file.display()))?;
        let parsed =
            syn::parse_file(&text).with_context(|| format!("cannot parse {}", file.display()))?;
        self.add(place, &parsed.items, file, folder)
    }

    fn add(&mut self, place: Place, items: &[Item], file: &Path, folder: &Path) -> Result<()> {
        let mut module = Module { file: file.to_owned(), ..Module::default() };
        for item in items {
            match item {
                item if is_for_tests(attributes(item)) => {}
                Item::Mod(inner) => {
                    let name = inner.ident.to_string();
                    let place = [place.clone(), vec![name.clone()]].concat();
                    match &inner.content {
                        Some((_, items)) => self.add(place, items, file, &folder.join(name))?,
                        None => {
                            let (file, folder) = find(file, folder, &name, &inner.attrs)?;
                            self.add_file(place, &file, &folder)?;
                        }
                    }
                }
                Item::Use(item) => module.add_use(&item.tree, &mut Vec::new()),
                item => {
                    module.items.extend(name(item).map(ToString::to_string));
                    module.add_paths(item.to_token_stream());
                }
            }
        }
        self.0.insert(place, module);
        Ok(())
    }

    /// The pairs of modules of which one imports the other, each pair once.
    pub fn edges(&self) -> Vec<Edge> {
        let mut edges = BTreeMap::new();
        for (from, module) in &self.0 {
            for import in &module.imports {
                let Some(to) = self.resolve(from, &import.path, 0) else { continue };
                edges.entry((from.clone(), to)).or_insert_with(|| (&module.file, import.line));
            }
        }
        edges
            .into_iter()
            .map(|((from, to), (file, line))| Edge { from, to, file: file.clone(), line })
            .collect()
    }

    /// The module that defines the item of this path; `None` if it is in another crate. `depth` is
    /// the number of re-exports followed so far, which may form a circle.
    fn resolve(&self, from: &Place, path: &[String], depth: usize) -> Option<Place> {
        let (first, mut rest) = path.split_first()?;
        let mut place = match first.as_str() {
            "crate" => Place::new(),
            "self" => from.clone(),
            "super" => from[..from.len().checked_sub(1)?].to_vec(),
            _ => {
                rest = path;
                from.clone()
            }
        };
        let is_anchored = rest.len() < path.len();
        for (index, name) in rest.iter().enumerate() {
            if name == "super" {
                place.pop();
                continue;
            }
            let child = [place.clone(), vec![name.clone()]].concat();
            if self.0.contains_key(&child) {
                place = child;
                continue;
            }
            let defined = self.definition(&place, name, &rest[index + 1..], depth);
            return defined.or_else(|| (is_anchored || index > 0).then_some(place));
        }
        Some(place)
    }

    /// Follows a name in a module that is no module in it.
    fn definition(&self, at: &Place, name: &str, rest: &[String], depth: usize) -> Option<Place> {
        const MOST_REEXPORTS: usize = 8;
        let module = self.0.get(at)?;
        if depth == MOST_REEXPORTS {
            return None;
        }
        if let Some(path) = module.names.get(name) {
            return self.resolve(at, &[path, rest].concat(), depth + 1);
        }
        module.globs.iter().find_map(|glob| {
            let target = self.resolve(at, glob, depth + 1)?;
            let exports = &self.0.get(&target)?;
            let has = exports.items.iter().any(|item| item == name);
            has.then_some(target)
        })
    }
}

impl Module {
    fn add_use(&mut self, tree: &UseTree, path: &mut Vec<String>) {
        let before = path.len();
        let (end, called) = match tree {
            UseTree::Path(tree) => {
                path.push(tree.ident.to_string());
                self.add_use(&tree.tree, path);
                path.truncate(before);
                return;
            }
            UseTree::Group(group) => {
                for tree in &group.items {
                    self.add_use(tree, path);
                }
                return;
            }
            UseTree::Glob(glob) => {
                self.globs.push(path.clone());
                let line = glob.star_token.spans[0].start().line;
                self.imports.push(Import { path: path.clone(), line });
                return;
            }
            UseTree::Name(name) => (&name.ident, &name.ident),
            UseTree::Rename(rename) => (&rename.ident, &rename.rename),
        };
        // `use a::{self}` names `a`.
        let called = match (end == "self", path.last()) {
            (true, Some(last)) => last.clone(),
            _ => called.to_string(),
        };
        let full = if end == "self" {
            path.clone()
        } else {
            [path.as_slice(), &[end.to_string()]].concat()
        };
        self.imports.push(Import { path: full.clone(), line: end.span().start().line });
        self.names.insert(called, full);
    }

    /// Records the paths in code that begin with `crate` or `super`. It searches tokens, because
    /// the arguments of macros are only tokens.
    fn add_paths(&mut self, tokens: TokenStream) {
        let mut tokens = tokens.into_iter().peekable();
        while let Some(token) = tokens.next() {
            match token {
                TokenTree::Group(group) => self.add_paths(group.stream()),
                TokenTree::Ident(first) if first == "crate" || first == "super" => {
                    let line = first.span().start().line;
                    let mut path = vec![first.to_string()];
                    while let Some(TokenTree::Punct(_)) = tokens
                        .next_if(|next| matches!(next, TokenTree::Punct(p) if p.as_char() == ':'))
                    {
                        if let Some(TokenTree::Ident(next)) =
                            tokens.next_if(|next| matches!(next, TokenTree::Ident(_)))
                        {
                            path.push(next.to_string());
                        }
                    }
                    if path.len() > 1 {
                        self.imports.push(Import { path, line });
                    }
                }
                _ => {}
            }
        }
    }
}

/// The file of a module that another one declares, and the folder of the module's submodules.
fn find(
    declaring: &Path,
    folder: &Path,
    name: &str,
    attributes: &[Attribute],
) -> Result<(PathBuf, PathBuf)> {
    if let Some(path) = path_attribute(attributes) {
        let file = declaring.parent().unwrap_or(Path::new("")).join(path);
        let folder = file.parent().unwrap_or(Path::new("")).to_owned();
        return Ok((file, folder));
    }
    let inner = folder.join(name);
    for file in [folder.join(format!("{name}.rs")), inner.join("mod.rs")] {
        if file.is_file() {
            return Ok((file, inner));
        }
    }
    bail!("{}: there is no file of the module {name}", declaring.display())
}

/// `#[path = "file.rs"]`
fn path_attribute(attributes: &[Attribute]) -> Option<String> {
    let attribute = attributes.iter().find(|attribute| attribute.path().is_ident("path"))?;
    let syn::Expr::Lit(value) = &attribute.meta.require_name_value().ok()?.value else {
        return None;
    };
    let syn::Lit::Str(text) = &value.lit else { return None };
    Some(text.value())
}

/// Whether the attributes say that the item is compiled for tests only.
fn is_for_tests(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        attribute.path().is_ident("cfg")
            && attribute.meta.require_list().is_ok_and(|list| list.tokens.to_string() == "test")
    })
}

fn attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Const(item) => &item.attrs,
        Item::Enum(item) => &item.attrs,
        Item::Fn(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Macro(item) => &item.attrs,
        Item::Mod(item) => &item.attrs,
        Item::Static(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        Item::Trait(item) => &item.attrs,
        Item::Type(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        _ => &[],
    }
}

/// The item's name.
fn name(item: &Item) -> Option<&Ident> {
    match item {
        Item::Const(item) => Some(&item.ident),
        Item::Enum(item) => Some(&item.ident),
        Item::Fn(item) => Some(&item.sig.ident),
        Item::Macro(item) => item.ident.as_ref(),
        Item::Static(item) => Some(&item.ident),
        Item::Struct(item) => Some(&item.ident),
        Item::Trait(item) => Some(&item.ident),
        Item::Type(item) => Some(&item.ident),
        Item::Union(item) => Some(&item.ident),
        _ => None,
    }
}

#[cfg(test)]
impl Modules {
    /// A crate in one text.
    pub fn parse(text: &str) -> Self {
        let mut modules = Self::default();
        let items = syn::parse_file(text).unwrap().items;
        modules.add(Vec::new(), &items, Path::new("lib.rs"), Path::new("")).unwrap();
        modules
    }
}
