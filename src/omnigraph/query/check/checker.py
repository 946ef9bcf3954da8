"""The type checker's entry: AST and catalog to IR."""

from omnigraph.query import ast, ir
from omnigraph.query.check.mutations import check_statement
from omnigraph.query.check.patterns import check_pattern
from omnigraph.query.check.projection import check_outputs
from omnigraph.query.check.scope import CheckContext, Scope
from omnigraph.schema.catalog import Catalog


def check(query: ast.QueryDecl, file: ast.QueryFile, catalog: Catalog) -> ir.Query:
    """The IR of a query. Raises LanguageError at the first error; `file` has the query."""
    context = CheckContext(catalog, file)
    params = context.declare_params(query.params)
    if isinstance(query.body, ast.MutationBody):
        statements = tuple(check_statement(context, statement) for statement in query.body.statements)
        return ir.MutationQuery(query.name, params, statements, context.uses_now, query.description)
    scope = Scope()
    pattern = check_pattern(context, query.body.match, scope)
    outputs = check_outputs(context, query.body, scope)
    return ir.ReadQuery(
        query.name,
        params,
        pattern,
        outputs.returns,
        outputs.grouped,
        outputs.group_by,
        outputs.order,
        outputs.tiebreak,
        query.body.limit,
        outputs.keeps,
        context.uses_now,
        query.description,
    )
